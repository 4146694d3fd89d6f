package fleetlock

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// application is Zincati's application ID, with which it derives its ID from the machine's.
const application = "de35106b6ec24688b63afddaa156679b"

// AppID returns the ID by which Zincati identifies itself on the machine with this machine-id, as
// sd_id128_get_machine_app_specific(3) derives it: `systemd-id128 machine-id -a
// de35106b6ec24688b63afddaa156679b` prints the same. machineID is the text of /etc/machine-id.
func AppID(machineID string) (string, error) {
	key, err := hex.DecodeString(strings.TrimSpace(machineID))
	if err != nil || len(key) != 16 {
		return "", fmt.Errorf("the machine-id is not 32 hexadecimal digits")
	}
	data, err := hex.DecodeString(application)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(data)
	id := mac.Sum(nil)[:16]
	id[6] = id[6]&0x0f | 0x40 // a UUID of version 4
	id[8] = id[8]&0x3f | 0x80
	return hex.EncodeToString(id), nil
}

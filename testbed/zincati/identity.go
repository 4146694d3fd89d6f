package zincati

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// DefaultGroup is the group of a host whose configuration names none.
const DefaultGroup = "default"

// appID is Zincati's application id, as machine-id(5) describes them.
const appID = "de35106b6ec24688b63afddaa156679b"

// Identity is what a host says about itself in every request.
type Identity struct {
	// ID is 32 hexadecimal digits in lower case: [AppID], or node_uuid of the configuration.
	ID string
	// Group is the host's reboot group.
	Group string
}

// AppID returns the id that Zincati sends by default, given the text of /etc/machine-id. The command
// "systemd-id128 machine-id --app-specific=de35106b6ec24688b63afddaa156679b" prints the same id.
func AppID(machineID string) (string, error) {
	return appSpecific(machineID, appID)
}

// appSpecific returns the id of a machine for an application: a keyed hash, cut to the size of a UUID and marked as a random
// one. It is sd_id128_get_machine_app_specific(3), which Zincati's library implements again.
func appSpecific(machine, app string) (string, error) {
	key, err := parseID(machine)
	if err != nil {
		return "", fmt.Errorf("parse machine id %q: %w", machine, err)
	}
	data, err := parseID(app)
	if err != nil {
		return "", fmt.Errorf("parse application id %q: %w", app, err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(data)
	id := mac.Sum(nil)[:16]
	id[6] = id[6]&0x0f | 0x40 // version 4
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return hex.EncodeToString(id), nil
}

func parseID(text string) ([]byte, error) {
	id, err := hex.DecodeString(strings.TrimSpace(text))
	if err == nil && len(id) != 16 {
		err = fmt.Errorf("it has %d bytes, not 16", len(id))
	}
	return id, err
}

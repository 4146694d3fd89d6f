package install

import (
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// remaining is what systemd-analyze still counts against the service, and what each is for. The unit's comments say more.
var remaining = map[string]string{
	"PrivateNetwork=":                          "the API server is on the network",
	"RestrictAddressFamilies=~AF_(INET|INET6)": "the API server is on the network",
	"RestrictAddressFamilies=~AF_UNIX":         "the system bus, the journal, sd_notify",
	"IPAddressDeny=":                           "only the kubeconfig knows the API server's address",
	"User=/DynamicUser=":                       "the kubelet's credential is root's; logind, systemd and update_engine listen to root",
	"PrivateUsers=":                            "hosts with user.max_user_namespaces=0 could not start it",
	"ProcSubset=":                              "the boot id and the uptime are in /proc",
	"RootDirectory=/RootImage=":                "kubeconfigs, PEM files, os-release and sentinels may be anywhere",
	"DeviceAllow=":                             "writes to terminals, to warn who is logged in; reads the clock's device, which comes with ProtectClock=",
	"PrivateDevices=":                          "the terminals of who is logged in are the host's devices",
	"UMask=":                                   "the words for `lockkeeper status` are for everybody on the host",
}

// maxExposure is systemd-analyze's figure, in tenths; 100 is no sandbox at all.
const maxExposure = 18

func TestExposure(t *testing.T) {
	unit := filepath.Join(source, "packaging/systemd/lockkeeper.service")
	var settings []struct {
		Name, Description string
		Exposure          *string
	}
	out := mustRun(t, "systemd-analyze", "security", "--offline=yes", "--json=short", "--no-pager", unit)
	if err := json.Unmarshal([]byte(out), &settings); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seen := map[string]bool{}
	for _, s := range settings {
		if s.Exposure == nil {
			continue
		}
		seen[s.Name] = true
		if remaining[s.Name] == "" {
			t.Errorf("%s costs %s, and nobody says what for (%s)", s.Name, *s.Exposure, s.Description)
		}
		t.Logf("%s  %-42s %s", *s.Exposure, s.Name, remaining[s.Name])
	}
	for name := range remaining {
		if !seen[name] {
			t.Errorf("%s has a reason and costs nothing", name)
		}
	}
	if out, err := run(t, "systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold="+strconv.Itoa(maxExposure), unit); err != nil {
		t.Errorf("the exposure is over %d tenths: %v\n%s", maxExposure, err, out)
	} else {
		lines := strings.Split(strings.TrimSpace(out), "\n")
		t.Log(lines[len(lines)-1])
	}
}

// TestVerify asks systemd about the units where they are installed. That the manual pages are there another test sees.
func TestVerify(t *testing.T) {
	r := newRoot(t)
	r.must("dpkg", "-i", r.copyIn(artefact(dist(t), debForm, v1)))
	units := []string{"lockkeeper.service", "lockkeeper-before-drain.target", "lockkeeper-before-reboot.target", "lockkeeper-before-uncordon.target"}
	verify := append([]string{"systemd-analyze", "verify", "--man=no"}, units...)
	if out := r.must(verify...); out != "" {
		t.Errorf("systemd-analyze verify says\n%s", out)
	}
	r.must("sed", "-i", "s/^WatchdogSec=.*/WatchdogSec=soon/", "/usr/lib/systemd/system/lockkeeper.service")
	if out, _ := r.run(verify...); !strings.Contains(out, "Failed to parse") {
		t.Errorf("systemd-analyze verify finds no mistake: %s", out)
	}
	// The sysext image's units: the target that multi-user.target upholds starts the service.
	mustRun(t, "unsquashfs", "-q", "-n", "-f", "-d", filepath.Join(r.upper, "image"), artefact(dist(t), rawForm, v1))
	r.must("cp", "-r", "/image/usr", "/")
	if out := r.must(append(verify, "lockkeeper-sysext.target")...); out != "" {
		t.Errorf("systemd-analyze verify says of the image's units\n%s", out)
	}
}

package hosts

import (
	"path"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// testUnitFiles compares the paths that UnitFiles returns for a unit with the files that systemd has loaded, for every
// unit of the host and some with unusual paths.
func testUnitFiles(t *testing.T, h *realhost.Host, u systemd.Units) {
	exec(t, h, `odd() { mkdir -p "$(dirname "$1")"; printf '[Unit]\nDocumentation=man:odd\n' >"$1"; }
		cd /etc/systemd/system
		for d in service odd-.service odd-one-two.service odd-alias.service odd-@.service odd-@two.service odd-one@.service odd-one@two.service; do odd $d.d/$d.conf; done
		odd /run/systemd/system/odd-.service.d/run.conf
		odd /usr/lib/systemd/system/odd-.service.d/lib.conf
		odd /usr/lib/systemd/system/odd-.service.d/service.conf # another file of this name, in /etc, is in a directory with less precedence
		odd odd-one-two.service.d/lib.conf
		for u in odd-one-two odd-one@; do printf '[Service]\nExecStart=/bin/sleep infinity\n' >/usr/lib/systemd/system/$u.service; done
		cp /usr/lib/systemd/system/odd-one-two.service .
		ln -s odd-one-two.service odd-alias.service
		systemctl daemon-reload; systemctl start odd-one@two.service odd-alias.service`)
	shown := exec(t, h, "systemctl show --property=Id,FragmentPath,DropInPaths '*'")
	odd := map[string]string{
		"odd-one-two.service": "odd-.service.d/odd-.service.conf odd-.service.d/run.conf odd-.service.d/service.conf odd-alias.service.d/odd-alias.service.conf" +
			" odd-one-two.service.d/lib.conf odd-one-two.service.d/odd-one-two.service.conf",
		"odd-one@two.service": "odd-.service.d/lib.conf odd-.service.d/odd-.service.conf odd-.service.d/run.conf odd-.service.d/service.conf odd-@.service.d/odd-@.service.conf" +
			" odd-@two.service.d/odd-@two.service.conf odd-one@.service.d/odd-one@.service.conf odd-one@two.service.d/odd-one@two.service.conf",
	}
	var first []string
	for block := range strings.SplitSeq(shown, "\n\n") {
		said := map[string]string{}
		for line := range strings.Lines(block) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			said[key] = value
		}
		fragment, found := said["FragmentPath"], strings.Fields(said["DropInPaths"])
		if fragment == "" && len(found) == 0 {
			continue
		}
		fragments, places, err := u.UnitFiles(t.Context(), said["Id"])
		must(t, err)
		at := slices.Index(fragments, fragment)
		if fragment != "" && at < 0 {
			t.Errorf("%s: systemd has it from %s, which is not among %q", said["Id"], fragment, fragments)
		}
		first = append(first, fragments[:max(at, 0)]...)
		var names []string
		for _, file := range found {
			names = append(names, path.Join(path.Base(path.Dir(file)), path.Base(file)))
			if !slices.Contains(places, path.Dir(file)) {
				t.Errorf("%s: systemd has a drop-in %s, whose directory is not among %q", said["Id"], file, places)
			}
		}
		slices.Sort(names)
		if want := odd[said["Id"]]; want != "" && strings.Join(names, " ") != want {
			t.Errorf("%s: systemd has the drop-ins %q, expected %s", said["Id"], names, want)
		}
		delete(odd, said["Id"])
	}
	if len(odd) > 0 || len(first) == 0 {
		t.Errorf("systemd does not show %v; %d places come before others' fragments:\n%s", odd, len(first), shown)
	}
	// The first existing fragment belongs to the unit.
	for file := range strings.Lines(exec(t, h, "for f in "+strings.Join(first, " ")+"; do [ ! -e $f ] || echo $f; done")) {
		t.Errorf("%s exists, but systemd prefers another file", strings.TrimSpace(file))
	}
}

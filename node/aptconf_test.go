package node

import (
	"maps"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/node/hostfs"
)

func TestParseApt(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want map[string]string
	}{
		"one line":         {`Unattended-Upgrade::Automatic-Reboot "true";`, map[string]string{"unattended-upgrade::automatic-reboot": "true"}},
		"scopes":           {"Unattended-Upgrade {\n  Automatic-Reboot \"true\";\n  Mail \"root; {a}\";\n};\nX \"1\";", map[string]string{"unattended-upgrade::automatic-reboot": "true", "unattended-upgrade::mail": "root; {a}", "x": "1"}},
		"the last stands":  {`A "1"; a "2";`, map[string]string{"a": "2"}},
		"without quotes":   {"A::B true;", map[string]string{"a::b": "true"}},
		"comments":         {"// A \"1\";\n# A \"2\";\n/* A \"3\";\n A \"4\"; */ A \"5\"; // A \"6\";\n", map[string]string{"a": "5"}},
		"comment in text":  {`A "http://x/#y /* z";`, map[string]string{"a": "http://x/#y /* z"}},
		"clear":            {"A::B \"1\"; A::C \"2\"; A \"3\"; AB \"4\";\n#clear A;", map[string]string{"ab": "4"}},
		"list":             {"Origins { \"a\"; \"b\"; };\nA \"1\";", map[string]string{"a": "1"}},
		"no end":           {`A "1`, map[string]string{"a": "1"}},
		"too many ends":    {`} } A "1"; }`, map[string]string{"a": "1"}},
		"scope with value": {`A "1" { B "2"; };`, map[string]string{"a": "1", "a::b": "2"}},
		"nothing":          {"\x00\xff;;{}{", map[string]string{}},
		"deeper than deep": {strings.Repeat("a{", 1000) + `b "1";`, map[string]string{}},
	} {
		got := map[string]string{}
		parseApt(c.text, got)
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func FuzzParseApt(f *testing.F) {
	f.Add("A { B \"1\"; };\n#clear A;\n// x\n/* y */")
	f.Fuzz(func(t *testing.T, text string) { parseApt(text, map[string]string{}) })
}

// What apt would read, and in what order; and only where the tool that would reboot is there.
func TestAutomaticReboot(t *testing.T) {
	const on, off, tool = `Unattended-Upgrade::Automatic-Reboot "true";`, `Unattended-Upgrade::Automatic-Reboot "false";`, "usr/bin/unattended-upgrade"
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"on":                       {map[string]string{tool: "", "etc/apt/apt.conf.d/50unattended-upgrades": on}, true},
		"not installed":            {map[string]string{"etc/apt/apt.conf.d/50unattended-upgrades": on}, false},
		"no configuration":         {map[string]string{tool: ""}, false},
		"as it is shipped":         {map[string]string{tool: "", "etc/apt/apt.conf.d/50unattended-upgrades": "//" + off}, false},
		"a later file":             {map[string]string{tool: "", "etc/apt/apt.conf.d/50unattended-upgrades": on, "etc/apt/apt.conf.d/99lockkeeper": off}, false},
		"an earlier file":          {map[string]string{tool: "", "etc/apt/apt.conf.d/10x": off, "etc/apt/apt.conf.d/50y.conf": on}, true},
		"apt.conf is the last":     {map[string]string{tool: "", "etc/apt/apt.conf.d/99x": on, "etc/apt/apt.conf": off}, false},
		"a file that apt passes":   {map[string]string{tool: "", "etc/apt/apt.conf.d/50x.ucf-dist": on, "etc/apt/apt.conf.d/60y~": on, "etc/apt/apt.conf.d/.z": on}, false},
		"in apt's other words":     {map[string]string{tool: "", "etc/apt/apt.conf.d/50x": "unattended-upgrade { AUTOMATIC-REBOOT yes; };"}, true},
		"no word for true or none": {map[string]string{tool: "", "etc/apt/apt.conf.d/50x": `Unattended-Upgrade::Automatic-Reboot "maybe";`}, false},
	} {
		r, err := hostfs.New(newRoot(t, c.files))
		must(t, err)
		got, err := automaticReboot(r)
		if got != c.want || err != nil {
			t.Errorf("%s: %t, %v", name, got, err)
		}
		r.Close()
	}
}

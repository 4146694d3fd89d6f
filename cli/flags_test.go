package cli

import (
	"strings"
	"testing"

	urfave "github.com/urfave/cli/v2"
)

func TestArrange(t *testing.T) {
	help := &urfave.BoolFlag{Name: "help", Aliases: []string{"h"}}
	app := &urfave.App{
		Flags: append(ConnectionFlags(), help),
		Commands: []*urfave.Command{
			{Name: "list", Flags: append(append(ConnectionFlags(), outputFlags("text", "json")...), help, &urfave.BoolFlag{Name: "all", Aliases: []string{"A"}}, &urfave.BoolFlag{Name: "watch", Aliases: []string{"w"}})},
			{Name: "raw", SkipFlagParsing: true},
		},
	}
	for line, want := range map[string]string{
		"":                               " --",
		"-h":                             "-h --",
		"list":                           "list --",
		"list n1 -A":                     "list -A -- n1",
		"list n1 -o json n2 --all=true":  "list -o json --all=true -- n1 n2",
		"list n1 --output=json":          "list --output=json -- n1",
		"list n1 -ojson":                 "list -o=json -- n1",
		"list n1 -o=json":                "list -o=json -- n1",
		"list -Aw n1":                    "list -A -w -- n1",
		"list -Awo json n1":              "list -A -w -o json -- n1",
		"list -A=false n1":               "list -A=false -- n1",
		"list -- -A n1":                  "list -- -A n1",
		"list n1 -A -- --all --":         "list -A -- n1 --all --",
		"list - -A":                      "list -A -- -",
		"list -o -A":                     "list -o -A --",
		"--context c list n1":            "list --context c -- n1",
		"-h --context=list list n1 -A":   "list -h --context=list -A -- n1",
		"list list -A":                   "list -A -- list",
		"-- list -A":                     "list -- -A",
		"raw x -A -- y":                  "raw x -A -- y",
		"list n1 --kubeconfig /a -w -v6": "list --kubeconfig /a -w -v=6 -- n1",
	} {
		got, err := Arrange(app, append([]string{"lockkeeper"}, strings.Fields(line)...))
		if err != nil || strings.Join(got, " ") != strings.TrimSuffix("lockkeeper "+strings.TrimPrefix(want, " "), " ") {
			t.Errorf("%s: %q, %v, expected %s", line, got, err, want)
		}
	}
	for line, want := range map[string]string{
		"list n1 --al":         "unknown flag --al (did you mean --all?); see `lockkeeper help list`",
		"list -kubeconfig x":   "unknown flag -kubeconfig; see `lockkeeper help list`",
		"list -AX":             "unknown flag -AX; see `lockkeeper help list`",
		"list n1 -o":           "-o requires a value; see `lockkeeper help list`",
		"list n1 --context":    "--context requires a value; see `lockkeeper help list`",
		"-A list":              "unknown flag -A before the command; see `lockkeeper help`",
		"--help --frobnicate":  "unknown flag --frobnicate before the command; see `lockkeeper help`",
		"--context":            "--context requires a value; see `lockkeeper help`",
		"lits n1":              "unknown command \"lits\" (did you mean list?); see `lockkeeper help`",
		"list --fancy=yes":     "unknown flag --fancy; see `lockkeeper help list`",
		"list --ouput yaml":    "unknown flag --ouput (did you mean --output?); see `lockkeeper help list`",
		"list --kube-config x": "unknown flag --kube-config (did you mean --kubeconfig?); see `lockkeeper help list`",
		"list --config x":      "unknown flag --config (did you mean --kubeconfig?); see `lockkeeper help list`",
		"list -x":              "unknown flag -x; see `lockkeeper help list`",
	} {
		if got, err := Arrange(app, append([]string{"lockkeeper"}, strings.Fields(line)...)); err == nil || err.Error() != want {
			t.Errorf("%s: %q, %v, expected %s", line, got, err, want)
		}
	}
}

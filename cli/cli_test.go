package cli

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
)

// call runs one line of words and returns what the command saw.
func call(line string) (string, error) {
	saw := ""
	action := func(c *Context) error {
		name := ""
		if c.Command != nil {
			name = c.Command.Name
		}
		saw = fmt.Sprintf("%s all=%t watch=%t output=%s set=%t args=%q", name, c.Bool("all"), c.Bool("watch"), c.String("output"), c.IsSet("output"), c.Args().Slice())
		return nil
	}
	flags := []Flag{
		&BoolFlag{Name: "all", Aliases: []string{"A"}}, &BoolFlag{Name: "watch", Aliases: []string{"w"}},
		&StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text"},
	}
	app := &App{
		Name: "p", Action: action, Flags: []Flag{&BoolFlag{Name: "watch"}},
		Commands: []*Command{{Name: "show", Flags: flags, Action: action}},
		OnUsageError: func(c *Context, err error) error {
			return fmt.Errorf("%w (command: %t)", err, c.Command != nil)
		},
	}
	err := app.RunContext(context.Background(), append([]string{"p"}, strings.Fields(line)...))
	return saw, err
}

func TestParse(t *testing.T) {
	for _, tc := range []struct{ line, saw, err string }{
		{"", ` all=false watch=false output= set=false args=[]`, ""},
		{"--watch", ` all=false watch=true output= set=false args=[]`, ""},
		{"--watch show", ` all=false watch=true output= set=false args=["show"]`, ""},
		{"sing", ` all=false watch=false output= set=false args=["sing"]`, ""},
		{"show", `show all=false watch=false output=text set=false args=[]`, ""},
		{"show -A n1", `show all=true watch=false output=text set=false args=["n1"]`, ""},
		{"show -Aw n1", `show all=true watch=true output=text set=false args=["n1"]`, ""},
		{"show -Awo json n1", `show all=true watch=true output=json set=true args=["n1"]`, ""},
		{"show --output json", `show all=false watch=false output=json set=true args=[]`, ""},
		{"show -output=json", `show all=false watch=false output=json set=true args=[]`, ""},
		{"show --output=", `show all=false watch=false output= set=true args=[]`, ""},
		{"show -o a=b -o c", `show all=false watch=false output=c set=true args=[]`, ""},
		{"show -o -A", `show all=false watch=false output=-A set=true args=[]`, ""},
		{"show --all=false", `show all=false watch=false output=text set=false args=[]`, ""},
		{"show -- -A", `show all=false watch=false output=text set=false args=["-A"]`, ""},
		{"show n1 -A", `show all=false watch=false output=text set=false args=["n1" "-A"]`, ""},
		{"show - n1", `show all=false watch=false output=text set=false args=["-" "n1"]`, ""},

		{"--all", "", "unknown flag -all (command: false)"},
		{"show --tall", "", "unknown flag -tall (command: true)"},
		{"show --Aw", "", "unknown flag -Aw (command: true)"},
		{"show -oA json", "", "unknown flag -oA (command: true)"},
		{"show -Ax", "", "unknown flag -Ax (command: true)"},
		{"show -o", "", "flag needs an argument: -o (command: true)"},
		{"show --all=perhaps", "", `-all is "perhaps", expected true or false (command: true)`},
	} {
		saw, err := call(tc.line)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if saw != tc.saw || got != tc.err {
			t.Errorf("%s: got %s, error %q\nexpected %s, error %q", tc.line, saw, got, tc.saw, tc.err)
		}
	}
}

func TestHelp(t *testing.T) {
	cmd := &Command{
		Name: "show", ArgsUsage: "[NODE]", Usage: "Show it", Description: "More.",
		Flags: []Flag{
			&StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT` of it", Value: "text"},
			&StringFlag{Name: "root", Hidden: true}, &BoolFlag{Name: "all", Usage: "all of it"},
			&StringFlag{Name: "at", Usage: "when"},
		},
	}
	app := &App{Name: "p", Usage: "shows things", Commands: []*Command{cmd, {Name: "hide", Hidden: true}, {Name: "go", Usage: "Go"}}}
	var got bytes.Buffer
	if err := app.WriteHelp(&got); err != nil {
		t.Fatal(err)
	}
	if err := cmd.WriteHelp(&got, app.Name); err != nil {
		t.Fatal(err)
	}
	const want = `p shows things.

Usage: p COMMAND [FLAG…] [ARGUMENT…]

  show [NODE]                   Show it
  go                            Go

p help COMMAND tells more of each. Flags go before arguments.
p show [FLAG…] [NODE]

Show it.

More.

Flags:
  --output FORMAT, -o FORMAT  FORMAT of it (default: "text")
  --all                       all of it
  --at VALUE                  when
`
	if got.String() != want {
		t.Errorf("got\n%s\nexpected\n%s", &got, want)
	}
}

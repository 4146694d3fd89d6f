package migrate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Setting is a flag of another tool, or a variable of its environment, and what becomes of it.
type Setting struct {
	// Program is the program that has the setting.
	Program string
	// Name is the flag without dashes, or the variable.
	Name string
	// Becomes is where lockkeeper has it: a field of a policy, or a key of the host's file
	// with its table. It is "" if nothing carries the setting on.
	Becomes string
	// How says how it is carried on, or why nothing carries it on.
	How string

	// boolean: the flag takes a value only after an equals sign.
	boolean bool
	// repeats: every value counts, not only the last.
	repeats bool
	// secret: the value is never shown.
	secret bool
	// restricts: if the value cannot be carried on, the policy is paused.
	restricts bool
	// use carries the values on, and may return a note that replaces How. nil: nothing
	// carries them on. values has one element, unless the setting repeats.
	use func(d *draft, values []string) (note string, err error)
}

// Settings returns all settings of the tool, in the order of its page.
func Settings(tool Tool) []Setting {
	switch tool {
	case FLUO:
		return slices.Concat(operatorSettings, agentSettings)
	case Kured:
		return kuredSettings
	case Locksmith:
		return locksmithSettings
	}
	return nil
}

// given is a setting that was found, with its values.
type given struct {
	setting *Setting
	values  []string
	// from is how a note names it: --flag=value or VARIABLE=value.
	from string
	// unread is why the value is not known; "" if it is.
	unread string
}

// program is a program that runs in a container, and how it takes its settings.
type program struct {
	name      string
	prefix    string // of its environment variables, with the underscore
	settings  []Setting
	envFirst  bool     // the environment takes precedence over flags
	envList   []string // repeating flags that the environment cannot set
	ownEnv    []string // variables with the prefix that are not settings
	emptyEnv  bool     // an empty variable counts
	stopAtArg bool     // flags end at the first argument that is not one, as in Go's package flag
}

func (p *program) find(name string) *Setting {
	for i := range p.settings {
		if p.settings[i].Name == name {
			return &p.settings[i]
		}
	}
	return nil
}

// container returns the container of a pod template that runs the program, or nil. shell
// reports that a shell starts the program, so that its flags cannot be read.
func (p *program) container(t *corev1.PodTemplateSpec) (c *corev1.Container, shell bool) {
	for i := range t.Spec.Containers {
		c := &t.Spec.Containers[i]
		switch {
		case len(c.Command) > 0 && base(c.Command[0]) == p.name:
			return c, false
		case len(c.Command) == 0 && imageName(c.Image) == p.name:
			return c, false
		}
		for _, arg := range slices.Concat(c.Command, c.Args) {
			if strings.Contains(arg, "bin/"+p.name) {
				return c, true
			}
		}
	}
	return nil, false
}

func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// imageName returns the last part of an image's repository: kured of ghcr.io/x/kured:1.23.
func imageName(image string) string {
	name, _, _ := strings.Cut(base(image), "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}

var reference = regexp.MustCompile(`\$?\$\([A-Za-z_.-][A-Za-z0-9_.-]*\)`)

// expand replaces references to variables in an argument, as the kubelet does. unread names
// a variable whose value is not in the object.
func expand(arg string, c *corev1.Container) (value, unread string) {
	value = reference.ReplaceAllStringFunc(arg, func(ref string) string {
		if strings.HasPrefix(ref, "$$") {
			return ref[1:]
		}
		for _, e := range slices.Backward(c.Env) {
			if e.Name != ref[2:len(ref)-1] {
				continue
			}
			if e.ValueFrom != nil {
				unread = e.Name
			}
			return e.Value
		}
		return ref
	})
	return value, unread
}

// read returns the settings that a container gives the program, and notes about what is not
// a setting of it.
func (p *program) read(c *corev1.Container) (all []given, notes []Note) {
	unknown := func(what, text string) { notes = append(notes, Note{what, NotCarried, text}) }
	args := slices.Concat(c.Command[min(1, len(c.Command)):], c.Args)
	if len(args) > maxArguments || len(c.Env) > maxArguments {
		unknown(p.name, fmt.Sprintf("it has more than %d arguments or variables; only the first %d were read", maxArguments, maxArguments))
		args = args[:min(maxArguments, len(args))]
	}
	for i := 0; i < len(args); i++ {
		arg, unread := expand(args[i], c)
		flag := strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
		if arg == "--" || p.stopAtArg && (flag == arg || flag == "") {
			if rest := args[i:]; len(rest) > 1 || arg != "--" {
				unknown(quote(strings.Join(rest, " ")), "these are arguments, and "+p.name+" has none")
			}
			break
		}
		if flag == arg || flag == "" {
			unknown(quote(arg), p.name+" has no arguments")
			continue
		}
		name, value, hasValue := strings.Cut(flag, "=")
		s := p.find(name)
		if s == nil {
			unknown(quote("--"+name), "unknown: "+p.name+" had no such flag when lockkeeper was written")
			continue
		}
		switch {
		case hasValue:
		case s.boolean:
			value = "true"
		case i+1 < len(args):
			i++
			value, unread = expand(args[i], c)
		}
		if len(value) > maxArgument {
			value, unread = "", fmt.Sprintf("the value has more than %d bytes", maxArgument)
		} else if unread != "" {
			unread = "its value comes from the variable " + quote(unread) + ", which is not in the object"
		}
		all = append(all, given{s, []string{value}, "--" + name, unread})
	}
	env, more := p.environment(c)
	return p.merge(all, env), append(notes, more...)
}

// environment returns the settings in the container's environment.
func (p *program) environment(c *corev1.Container) (all []given, notes []Note) {
	for _, e := range c.EnvFrom {
		from := "envFrom"
		switch {
		case e.ConfigMapRef != nil:
			from = "envFrom ConfigMap " + quote(e.ConfigMapRef.Name)
		case e.SecretRef != nil:
			from = "envFrom Secret " + quote(e.SecretRef.Name)
		}
		notes = append(notes, Note{from, NotCarried, "it was not read: look for variables that begin with " + p.prefix})
	}
	for _, e := range c.Env[:min(len(c.Env), maxArguments)] {
		name, ours := strings.CutPrefix(e.Name, p.prefix)
		if !ours || slices.Contains(p.ownEnv, e.Name) {
			continue
		}
		s := p.find(strings.ReplaceAll(strings.ToLower(name), "_", "-"))
		if s == nil || slices.Contains(p.envList, s.Name) {
			notes = append(notes, Note{quote(e.Name), NotCarried, "unknown: " + p.name + " reads no such variable"})
			continue
		}
		g := given{setting: s, from: e.Name}
		switch value, unread := expand(e.Value, c); {
		case e.ValueFrom != nil || unread != "":
			g.unread = "its value is not in the object"
		case len(value) > maxArgument:
			g.unread = fmt.Sprintf("the value has more than %d bytes", maxArgument)
		case value == "" && !p.emptyEnv:
			continue
		default:
			g.values = []string{value}
		}
		all = append(all, g)
	}
	return all, notes
}

// merge applies the program's precedence, and joins the values of settings that repeat.
func (p *program) merge(flags, env []given) []given {
	first, second := env, flags // the second takes precedence
	if p.envFirst {
		first, second = flags, env
	}
	var all []given
	for _, g := range slices.Concat(first, second) {
		i := slices.IndexFunc(all, func(o given) bool { return o.setting == g.setting })
		switch {
		case i < 0:
			all = append(all, g)
		case g.setting.repeats && g.unread == "":
			all[i].values = append(all[i].values, g.values...)
		default:
			all[i] = g
		}
	}
	slices.SortStableFunc(all, func(a, b given) int { return p.index(a.setting) - p.index(b.setting) })
	return all
}

func (p *program) index(s *Setting) int {
	return slices.IndexFunc(p.settings, func(o Setting) bool { return o.Name == s.Name })
}

// useSettings carries on what the workload's container c gives the program. shell reports that a shell starts the program.
func (d *draft) useSettings(p *program, w *Workload, c *corev1.Container, shell bool) {
	if shell {
		d.note(Note{w.String(), Decide, "a shell starts " + p.name + ", so that its flags were not read"})
		return
	}
	all, notes := p.read(c)
	d.use(all)
	d.notes = append(d.notes, notes...)
}

// use carries the settings on, and notes what became of each.
func (d *draft) use(all []given) {
	for _, g := range all {
		shown := g.from + "=" + quote(strings.Join(g.values, ","))
		switch {
		case g.setting.secret:
			shown = g.from + "=(not shown)"
		case g.unread != "":
			shown = g.from
		}
		note := Note{shown, Carried, g.setting.Becomes + ": " + g.setting.How}
		if g.setting.Becomes == "" {
			note.Outcome, note.Text = NotCarried, g.setting.How
		}
		switch {
		case g.unread != "" && g.setting.restricts:
			note.Outcome, note.Text = Decide, g.unread
		case g.unread != "" && g.setting.Becomes != "":
			note.Outcome, note.Text = NotCarried, g.unread
		case g.unread != "", g.setting.use == nil:
		default:
			text, err := g.setting.use(d, g.values)
			switch {
			case err != nil && g.setting.restricts:
				note.Outcome, note.Text = Decide, cut(err.Error(), maxText)
			case err != nil:
				note.Outcome, note.Text = NotCarried, cut(err.Error(), maxText)
			case text != "":
				note.Outcome, note.Text = Carried, text
			}
		}
		d.note(note)
	}
}

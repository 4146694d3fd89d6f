package migrate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// FLUO's two programs, as of cmd/update-operator/main.go and cmd/update-agent/main.go in
// flatcar/flatcar-linux-update-operator. Both set flags from the environment that the command
// line does not set (SetFlagsFromEnv of coreos/pkg/flagutil).
var (
	operator = program{name: "update-operator", prefix: "UPDATE_OPERATOR_", settings: operatorSettings, stopAtArg: true}
	agent    = program{name: "update-agent", prefix: "UPDATE_AGENT_", settings: agentSettings, stopAtArg: true}
)

// fluoDraft has the settings of which several make one of lockkeeper's.
type fluoDraft struct {
	start, length string
	checks        []string // annotations that flags name
}

const klogHow = "lockkeeper logs to the journal; log_level of the host's file"

var operatorSettings = slices.Concat([]Setting{
	{Program: "update-operator", Name: "reboot-window-start", Becomes: "spec.rollout.windows", restricts: true,
		How: "together with reboot-window-length. FLUO uses the local time of its container, which is UTC unless the pod sets TZ or mounts a zone",
		use: func(d *draft, values []string) (string, error) { d.fluo.start = values[0]; return "", nil }},
	{Program: "update-operator", Name: "reboot-window-length", Becomes: "spec.rollout.windows", restricts: true,
		How: "together with reboot-window-start. A turn begins only if spec.rollout.expectedDuration fits into the rest of the window; FLUO begins until its last second. A window of more than 24 hours becomes several that touch",
		use: func(d *draft, values []string) (string, error) { d.fluo.length = values[0]; return "", nil }},
	{Program: "update-operator", Name: "before-reboot-annotations", Becomes: "spec.hooks.beforeDrain", repeats: true, restricts: true,
		How: "one hook for each annotation, named after the part of the key after the slash; it waits indefinitely, as FLUO does. Both come before the cordon. Change the programs that set the annotations, see below",
		use: func(d *draft, values []string) (string, error) {
			names, err := d.fluo.hookNames(values)
			for _, name := range names {
				d.spec.Hooks.BeforeDrain = append(d.spec.Hooks.BeforeDrain, v1alpha1.HookSpec{Name: name, Timeout: hookTimeout, OnTimeout: v1alpha1.OnTimeoutWait})
			}
			return "", err
		}},
	{Program: "update-operator", Name: "after-reboot-annotations", Becomes: "spec.hooks.beforeUncordon", repeats: true, restricts: true,
		How: "one hook for each annotation, as above, before the node is uncordoned. lockkeeper runs them after a turn that was backed out, too",
		use: func(d *draft, values []string) (string, error) {
			names, err := d.fluo.hookNames(values)
			for _, name := range names {
				if slices.ContainsFunc(d.spec.Hooks.BeforeDrain, func(h v1alpha1.HookSpec) bool { return h.Name == name }) {
					name = name[:min(len(name), 57)] + "-after" // a hook's name is in one stage only
				}
				d.spec.Hooks.BeforeUncordon = append(d.spec.Hooks.BeforeUncordon, v1alpha1.UncordonHookSpec{Name: name, Timeout: hookTimeout, OnTimeout: v1alpha1.OnTimeoutWait})
			}
			return "", err
		}},
	{Program: "update-operator", Name: "kubeconfig", How: "[coordinator] kubeconfig of the host's file; `lockkeeper kubeconfig` creates one"},
	{Program: "update-operator", Name: "auto-label-flatcar-linux", boolean: true, How: "removed in FLUO 0.9. A policy's nodeSelector can use the label lockkeeper.dev/os"},
	{Program: "update-operator", Name: "manage-agent", boolean: true, How: "removed in FLUO 0.8. Hosts install lockkeeper themselves"},
	{Program: "update-operator", Name: "agent-image-repo", How: "removed in FLUO 0.8. Nothing runs in the cluster"},
	{Program: "update-operator", Name: "analytics", boolean: true, How: "removed in FLUO 0.8"},
	{Program: "update-operator", Name: "version", boolean: true, How: "`lockkeeper version`"},
}, klogSettings("update-operator"))

var agentSettings = slices.Concat([]Setting{
	{Program: "update-agent", Name: "grace-period", Becomes: "spec.drain.timeout", restricts: true,
		How: "in seconds; it bounds the drain. FLUO then reboots with the pods that are left. lockkeeper backs the turn out (onTimeout: Abort) and tries again; set Force to get what FLUO did",
		use: func(d *draft, values []string) (string, error) {
			n, err := strconv.Atoi(values[0])
			if err != nil || n < 1 || n > int(week/time.Second) {
				return "", errors.New("it is not a number of seconds of 1 to 604800")
			}
			d.spec.Drain.Timeout = metav1.Duration{Duration: time.Duration(n) * time.Second}
			return "", nil
		}},
	{Program: "update-agent", Name: "force-drain", boolean: true, How: "not needed: a drain evicts pods without a controller, too"},
	{Program: "update-agent", Name: "reboot-wait", How: "in no release; a hook of before-reboot can wait, for something that can be checked"},
	{Program: "update-agent", Name: "node", How: "not needed: a host knows its Node by its credential"},
	{Program: "update-agent", Name: "version", boolean: true, How: "`lockkeeper version`"},
}, klogSettings("update-agent"))

// klogSettings are the flags of klog.InitFlags.
func klogSettings(program string) (all []Setting) {
	for _, name := range []string{"v", "vmodule", "log_dir", "log_file", "log_file_max_size", "log_backtrace_at", "stderrthreshold"} {
		all = append(all, Setting{Program: program, Name: name, How: klogHow})
	}
	for _, name := range []string{"logtostderr", "alsologtostderr", "skip_headers", "skip_log_headers", "add_dir_header", "one_output"} {
		all = append(all, Setting{Program: program, Name: name, How: klogHow, boolean: true})
	}
	return all
}

var hookTimeout = metav1.Duration{Duration: 30 * time.Minute}

// maxHooks bounds the hooks of a stage.
const maxHooks = 16

// hookNames returns a hook's name for each annotation in the flag's values, and keeps the
// annotations.
func (f *fluoDraft) hookNames(values []string) (names []string, err error) {
	for _, value := range values {
		for key := range strings.SplitSeq(value, ",") {
			if key = strings.TrimSpace(key); key == "" {
				continue
			}
			if len(validation.IsQualifiedName(key)) > 0 {
				return nil, fmt.Errorf("%s is not the key of an annotation", quote(key))
			}
			f.checks = append(f.checks, key)
			if name := base(key); !slices.Contains(names, name) {
				names = append(names, name)
			}
			if len(names) > maxHooks {
				return nil, fmt.Errorf("a stage has %d hooks at most", maxHooks)
			}
		}
	}
	return names, nil
}

func fromFLUO(r *Result, in *Input) {
	var agents []*Workload
	var d *draft
	source := ""
	var checks []string
	host := &hostFile{}
	for i := range in.Workloads {
		w := &in.Workloads[i]
		if c, _ := agent.container(&w.Template); c != nil {
			agents = append(agents, w)
			host.addNamespace(w)
		}
		c, shell := operator.container(&w.Template)
		switch {
		case c == nil:
		case d != nil:
			r.Notes = append(r.Notes, Note{w.String(), NotCarried, "a second update-operator; the policy is made from " + source})
		default:
			d, source = newDraft(in, host, w), w.String()
			d.program = c
			d.useSettings(&operator, w, c, shell)
			d.fluoWindow()
		}
	}
	if d == nil && len(agents) > 0 {
		d, source = newDraft(in, host, agents[0]), agents[0].String()
		d.note(Note{"update-operator", Decide, "there is no Deployment of it, so that its windows and annotations are not known"})
	}
	if d != nil {
		d.fluoAgents(agents)
		// pkg/agent/agent.go: pods in kube-system are never evicted.
		d.spec.Drain.Skip = append(d.spec.Drain.Skip, v1alpha1.PodSelector{Namespace: metav1.NamespaceSystem})
		d.note(Note{"pods in " + metav1.NamespaceSystem, Carried, "spec.drain.skip: FLUO never evicts them. Leave this out to have them evicted as all others"})
		r.Policies = []Policy{d.policy("from-fluo", source)}
		r.Notes = append(r.Notes, d.notes...)
		checks, r.HostFile = d.fluo.checks, host.text()
	}
	fluoNodes(r, in, checks)
}

// fluoWindow makes the policy's window. FLUO has no window unless both of its flags are set.
func (d *draft) fluoWindow() {
	f := d.fluo
	if (f.start == "") != (f.length == "") {
		d.note(Note{"the reboot window", NotCarried, "FLUO ignores the one of reboot-window-start and reboot-window-length without the other, and reboots at any time: so does the policy"})
	}
	if f.start == "" || f.length == "" {
		return
	}
	p, err := parsePeriodic(f.start, f.length)
	if err == nil && p.length >= p.period() {
		err = errors.New("it is longer than its period, and FLUO does not start with that")
	}
	var ws []v1alpha1.Window
	var zone, note string
	if err == nil {
		zone, err = d.containerZone()
	}
	if err == nil {
		ws, err = p.windows(zone)
	}
	if err == nil {
		note, err = d.windows(ws)
	}
	if err != nil {
		d.note(Note{"the reboot window", Decide, err.Error()})
		return
	}
	d.note(Note{"the reboot window", Carried, "spec.rollout.windows, in the container's local time, " + quote(zone) + note})
}

// fluoAgents reads the agents: on which nodes they run, and how they drain.
func (d *draft) fluoAgents(agents []*Workload) {
	d.spec.Drain.Timeout = metav1.Duration{Duration: 10 * time.Minute} // the default of grace-period
	switch len(agents) {
	case 0:
		d.note(Note{"update-agent", Decide, "there is no DaemonSet of it, so that its nodes are not known"})
	case 1:
		w := agents[0]
		d.selectNodes(&w.Template)
		d.untolerated(&w.Template)
		c, shell := agent.container(&w.Template)
		d.useSettings(&agent, w, c, shell)
	default:
		d.note(Note{"update-agent", Decide, fmt.Sprintf("there are %d DaemonSets of it, and the policy would have to say on which nodes", len(agents))})
	}
}

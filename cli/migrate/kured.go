package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

func fromKured(r *Result, in *Input) {
	host := &hostFile{}
	found := map[string]*kuredDraft{}
	for i := range in.Workloads {
		w := &in.Workloads[i]
		c, shell := kured.container(&w.Template)
		if c == nil {
			continue
		}
		d := newDraft(in, host, w)
		d.program = c
		d.kured = kuredDraft{days: everyDay, end: day, zone: "UTC", lock: kuredLock}
		host.addNamespace(w)
		d.selectNodes(&w.Template)
		d.untolerated(&w.Template)
		d.useSettings(&kured, w, c, shell)
		d.finishKured()
		found[w.String()] = &d.kured
		name := "from-kured"
		if len(r.Policies) > 0 {
			name += "-" + strconv.Itoa(len(r.Policies)+1)
		}
		if holder := cmp.Or(manualLock(w.Annotations[d.kured.lock], in), manualLock(w.Annotations[kuredDevLock], in)); holder != "" {
			d.note(Note{w.String() + ": the lock", Decide, "its holder " + quote(holder) + " is not a node: a user set the lock to stop kured"})
		}
		p := d.policy(name, w.String())
		r.Policies, r.Notes = append(r.Policies, p), append(r.Notes, d.notes...)
	}
	r.HostFile = host.text()
	kuredNodes(r, in, found)
}

// finishKured makes what several settings make together.
func (d *draft) finishKured() {
	k := &d.kured
	if !slices.ContainsFunc([]string{"reboot-days", "start-time", "end-time", "time-zone", "KURED_REBOOT_DAYS", "KURED_START_TIME", "KURED_END_TIME", "KURED_TIME_ZONE"},
		func(name string) bool { return d.failed[name] }) && k.windowSet {
		ws, note, err := kuredWindows(k.days, k.start, k.end, k.zone)
		more := ""
		if err == nil {
			more, err = d.windows(ws)
		}
		switch {
		case err != nil:
			d.note(Note{"the reboot window", Decide, err.Error()})
		case note+more != "":
			d.note(Note{"the reboot window", Carried, strings.TrimPrefix(note+more, "; ")})
		}
	}
	if k.prometheus {
		query := kuredQuery(k)
		if len(query) > maxQuery {
			d.note(Note{"the alert gate", Decide, fmt.Sprintf("the query has more than %d bytes", maxQuery)})
		} else {
			d.spec.Rollout.Gates = []v1alpha1.Gate{{Name: "kured-alerts", Query: query}}
		}
	}
	switch {
	case k.timeout == 0:
		d.spec.Drain.OnTimeout = v1alpha1.OnTimeoutWait // kured waits indefinitely, and says nothing
	default:
		d.spec.Drain.Timeout = metav1.Duration{Duration: k.timeout}
		if k.force {
			d.spec.Drain.OnTimeout = v1alpha1.OnTimeoutForce
		}
	}
	if sentinel := cmp.Or(k.sentinel, "/run/reboot-required"); len(d.host.sentinels) < maxHostList && !slices.Contains(d.host.sentinels, sentinel) {
		d.host.sentinels = append(d.host.sentinels, sentinel)
	}
}

// maxQuery bounds a gate's query, in bytes.
const maxQuery = 4096

// kuredQuery returns the query that has a result while kured would not reboot:
// pkg/blockers/prometheus.go in kubereboot/kured queries ALERTS and filters the names. It leaves
// out lockkeeper's own alerts unless the filter chooses the alerts: LockkeeperRebootPending is
// active as soon as a host wants a reboot, and would keep the gate closed until it has rebooted.
func kuredQuery(k *kuredDraft) string {
	var matchers []string
	if k.filter != "" {
		op := "!~"
		if k.matchOnly {
			op = "=~"
		}
		matchers = append(matchers, "alertname"+op+strconv.Quote(".*(?:"+k.filter+").*"))
	}
	if k.filter == "" || !k.matchOnly {
		matchers = append(matchers, `alertname!~"Lockkeeper.+"`)
	}
	if k.firing {
		matchers = append(matchers, `alertstate="firing"`)
	}
	return "ALERTS{" + strings.Join(matchers, ",") + "} != 0"
}

func useConcurrency(d *draft, values []string) (string, error) {
	n, err := strconv.Atoi(values[0])
	if err != nil || n > policy.MaxNodes {
		return "", fmt.Errorf("it is not a number of 1 to %d", policy.MaxNodes)
	}
	d.spec.Rollout.MaxUnavailable = intstr.FromInt32(int32(max(n, 1))) // kured takes 0 and less as 1
	return "", nil
}

// webAddress is what lockkeeper accepts as the address of Prometheus, and a little less.
var webAddress = regexp.MustCompile(`^https?://([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$`)

func usePrometheusURL(d *draft, values []string) (string, error) {
	if values[0] == "" {
		return "empty, which means no server", nil
	}
	d.kured.prometheus = true
	switch {
	case len(values[0]) > 1024 || !webAddress.MatchString(values[0]):
		return "", errors.New("it is not an address that lockkeeper accepts: http or https, without a user, ? and #")
	case d.host.prometheusURL != "" && d.host.prometheusURL != values[0]:
		return "", fmt.Errorf("the coordinator asks one server only, and another DaemonSet of kured has %s", quote(d.host.prometheusURL))
	}
	d.host.prometheusURL = values[0]
	return "", nil
}

// quotable returns text without characters that an address must not have.
func quotable(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return -1
		}
		return r
	}, s)
}

// maxPodSelectors bounds the lists of pods in a policy.
const maxPodSelectors = 16

func useBlocking(d *draft, values []string) (string, error) {
	for _, value := range values {
		all, err := requirements(value)
		switch {
		case err != nil:
			return "", err
		case len(all) == 0:
			return "", errors.New("the empty selector selects every pod, so that kured never reboots")
		}
		d.spec.Drain.Block = append(d.spec.Drain.Block, v1alpha1.PodSelector{Selector: metav1.LabelSelector{MatchExpressions: all}})
	}
	if len(d.spec.Drain.Block) > maxPodSelectors {
		d.spec.Drain.Block = nil
		return "", fmt.Errorf("a policy has %d of them at most", maxPodSelectors)
	}
	return "", nil
}

// operators are a policy's operators. Of kured's, > and < are missing.
var operators = map[selection.Operator]metav1.LabelSelectorOperator{
	selection.In: metav1.LabelSelectorOpIn, selection.Equals: metav1.LabelSelectorOpIn, selection.DoubleEquals: metav1.LabelSelectorOpIn,
	selection.NotIn: metav1.LabelSelectorOpNotIn, selection.NotEquals: metav1.LabelSelectorOpNotIn,
	selection.Exists: metav1.LabelSelectorOpExists, selection.DoesNotExist: metav1.LabelSelectorOpDoesNotExist,
}

// requirements parses a selector such as "a=b,c!=d".
func requirements(text string) (all []metav1.LabelSelectorRequirement, err error) {
	sel, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s is not a selector such as app=web,tier!=db", quote(text))
	}
	list, _ := sel.Requirements()
	for _, r := range list {
		op, ok := operators[r.Operator()]
		if !ok {
			return nil, fmt.Errorf("%s has the operator %s, and a policy's selector has none like it", quote(text), r.Operator())
		}
		all = append(all, metav1.LabelSelectorRequirement{Key: r.Key(), Operator: op, Values: r.Values().UnsortedList()})
		slices.Sort(all[len(all)-1].Values)
	}
	return all, nil
}

// complements are the operators of the opposite requirements. In needs the label, and NotIn
// selects objects without it, so that each is exact.
var complements = map[metav1.LabelSelectorOperator]metav1.LabelSelectorOperator{
	metav1.LabelSelectorOpIn: metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpNotIn: metav1.LabelSelectorOpIn,
	metav1.LabelSelectorOpExists: metav1.LabelSelectorOpDoesNotExist, metav1.LabelSelectorOpDoesNotExist: metav1.LabelSelectorOpExists,
}

// useDrainSelector skips the pods that kured does not drain: those that fail one of the
// selector's requirements.
func useDrainSelector(d *draft, values []string) (string, error) {
	if values[0] == "" {
		return "empty, which selects all pods", nil
	}
	all, err := requirements(values[0])
	if err != nil {
		return "", err
	}
	if len(all) > maxPodSelectors {
		return "", fmt.Errorf("a policy skips by %d requirements at most", maxPodSelectors)
	}
	for _, r := range all {
		r.Operator = complements[r.Operator]
		d.spec.Drain.Skip = append(d.spec.Drain.Skip, v1alpha1.PodSelector{
			Selector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}},
		})
	}
	return "", nil
}

// useSentinel finds the file's path on the host: the manifests mount /var/run at /sentinel.
func useSentinel(d *draft, values []string) (string, error) {
	file := values[0]
	var mount *corev1.VolumeMount
	for i := range d.program.VolumeMounts {
		m := &d.program.VolumeMounts[i]
		if strings.HasPrefix(file, strings.TrimSuffix(m.MountPath, "/")+"/") && (mount == nil || len(m.MountPath) > len(mount.MountPath)) {
			mount = m
		}
	}
	if mount != nil {
		host := ""
		for _, v := range d.template.Spec.Volumes {
			if v.Name == mount.Name && v.HostPath != nil {
				host = v.HostPath.Path
			}
		}
		if host == "" || mount.SubPath != "" || mount.SubPathExpr != "" {
			return "", errors.New("the file is in a volume that is not a directory of the host")
		}
		file = host + strings.TrimPrefix(file, strings.TrimSuffix(mount.MountPath, "/"))
	}
	if rest, ok := strings.CutPrefix(file, "/var/run/"); ok {
		file = "/run/" + rest
	}
	if !path.IsAbs(file) || path.Clean(file) != file || file == "/" || len(file) > 4096 || file != quotable(file) {
		return "", errors.New("it is not a clean, absolute path")
	}
	d.kured.sentinel = file
	return "", nil
}

const notifyHow = "lockkeeper posts to Slack, Teams or any https URL, but not to the URLs of shoutrrr. The URL is a secret, so it is not printed: put it into a drop-in yourself"

func useNotify(d *draft, values []string) (string, error) {
	if values[0] == "" {
		return "empty, which means no notifications", nil
	}
	d.host.notify = true
	return "", errors.New(notifyHow)
}

func parseBool(values []string, to *bool) (err error) {
	if *to, err = strconv.ParseBool(values[0]); err != nil {
		return errors.New("it is not true or false")
	}
	return nil
}

func parseDuration(s string, low, high time.Duration) (time.Duration, error) {
	t, err := time.ParseDuration(s)
	if err != nil {
		return 0, errors.New("it is not a duration such as 30m")
	}
	if t < low || t > high {
		return 0, fmt.Errorf("lockkeeper accepts %s to %s", v1alpha1.ShortDuration(low), v1alpha1.ShortDuration(high))
	}
	if t > 0 && t < time.Second {
		return 0, errors.New("lockkeeper accepts 1s and more")
	}
	return t, nil
}

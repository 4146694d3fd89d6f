package migrate

import (
	"cmp"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// kured is kured's daemon, as of cmd/kured/main.go and internal/cli/envtoflag.go in
// kubereboot/kured. From 1.17 on, the environment takes precedence over flags, and cannot
// set flags that repeat as blocking-pod-selector does.
var kured = program{
	name: "kured", prefix: "KURED_", settings: kuredSettings, envFirst: true, emptyEnv: true, envList: []string{"blocking-pod-selector"},
}

// kuredDraft has the settings of which several make one of lockkeeper's.
type kuredDraft struct {
	days              daySet
	start, end        time.Duration
	zone              string
	windowSet         bool
	prometheus        bool
	filter            string
	matchOnly, firing bool
	timeout           time.Duration
	force             bool
	lock              string
	sentinel          string
	taint             string
	labels            []string // keys that flags set on Nodes
}

const taintHow = "lockkeeper sets no taint on nodes that wait. `migrate --apply` removes one that begins with weave.works/kured- or kured.dev/, and names any other"

const scheduleHow = "these four flags together make the windows. kured does not reboot on a day that is not in --reboot-days, not even after midnight in a window that began on the day before; the generated windows do the same. A turn begins only if spec.rollout.expectedDuration fits into the rest of the window; kured begins a reboot even in the last second"

var kuredSettings = []Setting{
	{Program: "kured", Name: "concurrency", Becomes: "spec.rollout.maxUnavailable", restricts: true, use: useConcurrency,
		How: "the same number. lockkeeper counts nodes that are not Ready or cordoned by anyone, too"},
	{Program: "kured", Name: "reboot-days", Becomes: "spec.rollout.windows", repeats: true, restricts: true, How: scheduleHow,
		use: func(d *draft, values []string) (_ string, err error) {
			d.kured.days, err = kuredDays(values)
			d.kured.windowSet = true
			return "", err
		}},
	{Program: "kured", Name: "start-time", Becomes: "spec.rollout.windows", restricts: true, How: scheduleHow,
		use: func(d *draft, values []string) (_ string, err error) {
			d.kured.start, err = kuredTime(values[0], false)
			d.kured.windowSet = true
			return "", err
		}},
	{Program: "kured", Name: "end-time", Becomes: "spec.rollout.windows", restricts: true, How: scheduleHow,
		use: func(d *draft, values []string) (_ string, err error) {
			d.kured.end, err = kuredTime(values[0], true)
			d.kured.windowSet = true
			return "", err
		}},
	{Program: "kured", Name: "time-zone", Becomes: "spec.rollout.windows", restricts: true, How: scheduleHow,
		use: func(d *draft, values []string) (_ string, err error) {
			if d.kured.zone = cmp.Or(values[0], "UTC"); d.kured.zone == "Local" {
				if d.kured.zone, err = d.containerZone(); err != nil {
					return "", err
				}
			}
			return "", checkWindows([]v1alpha1.Window{window(everyDay, 0, day, d.kured.zone)}, d.in.Zones)
		}},
	{Program: "kured", Name: "prometheus-url", Becomes: "[coordinator] prometheus_url", restricts: true, use: usePrometheusURL,
		How: "the coordinator asks this server about a gate of the policy. It must reach it from the host"},
	{Program: "kured", Name: "alert-filter-regexp", Becomes: "spec.rollout.gates", restricts: true,
		How: "in the gate's query. kured searches for the expression, Prometheus matches whole names, so .* is added on both sides. The query leaves out lockkeeper's own alerts, some of which last until the node has rebooted",
		use: func(d *draft, values []string) (string, error) {
			d.kured.filter = values[0]
			if _, err := regexp.Compile(values[0]); err != nil {
				return "", errors.New("it is not a regular expression")
			}
			return "", nil
		}},
	{Program: "kured", Name: "alert-filter-match-only", Becomes: "spec.rollout.gates", boolean: true, restricts: true, How: "in the gate's query",
		use: func(d *draft, values []string) (string, error) { return "", parseBool(values, &d.kured.matchOnly) }},
	{Program: "kured", Name: "alert-firing-only", Becomes: "spec.rollout.gates", boolean: true, restricts: true, How: "in the gate's query",
		use: func(d *draft, values []string) (string, error) { return "", parseBool(values, &d.kured.firing) }},
	{Program: "kured", Name: "blocking-pod-selector", Becomes: "spec.drain.block", repeats: true, restricts: true, use: useBlocking,
		How: "the node gets no turn until these pods have ended, as with kured. Pods that come after the cordon are waited for"},
	{Program: "kured", Name: "drain-pod-selector", Becomes: "spec.drain.skip", restricts: true, use: useDrainSelector,
		How: "inverted: all pods that it does not select stay on the node"},
	{Program: "kured", Name: "drain-timeout", Becomes: "spec.drain.timeout", restricts: true,
		How: "0, the default, waits indefinitely: spec.drain.onTimeout is Wait then, and otherwise Abort, as with kured, or Force with --force-reboot",
		use: func(d *draft, values []string) (_ string, err error) {
			d.kured.timeout, err = parseDuration(values[0], 0, week)
			return "", err
		}},
	{Program: "kured", Name: "force-reboot", Becomes: "spec.drain.onTimeout", boolean: true,
		How: "Force, if --drain-timeout is set: the pods that are left are deleted, whatever PodDisruptionBudgets say, and the node reboots",
		use: func(d *draft, values []string) (string, error) { return "", parseBool(values, &d.kured.force) }},
	{Program: "kured", Name: "drain-grace-period", How: "each pod has the grace period of its own spec",
		use: func(_ *draft, values []string) (string, error) {
			if n, err := strconv.Atoi(values[0]); err == nil && n < 0 {
				return "negative, which means each pod's own grace period: so does lockkeeper", nil
			}
			return "", errors.New("each pod has the grace period of its own spec")
		}},
	{Program: "kured", Name: "skip-wait-for-delete-timeout", How: "a drain waits until a pod is gone; spec.drain.timeout bounds it"},
	{Program: "kured", Name: "drain-delay", How: "a hook of before-drain can wait, for something that can be checked"},
	{Program: "kured", Name: "reboot-delay", How: "a hook of before-reboot can wait; users who are logged in have [reboot] session_delay"},
	{Program: "kured", Name: "lock-release-delay", Becomes: "spec.rollout.settle", restricts: true,
		How: "the least time from the end of one turn to the next grant",
		use: func(d *draft, values []string) (string, error) {
			settle, err := parseDuration(values[0], 0, day)
			if err == nil && settle > 0 {
				d.spec.Rollout.Settle = metav1.Duration{Duration: settle}
			}
			return "", err
		}},
	{Program: "kured", Name: "reboot-sentinel", Becomes: "[sources] sentinels", use: useSentinel,
		How: "the same file, by its path on the host. Without the flag it is /run/reboot-required"},
	{Program: "kured", Name: "reboot-sentinel-command", How: "lockkeeper runs no command to find out. A systemd timer of yours can, and create /run/reboot-required",
		use: func(d *draft, values []string) (string, error) {
			if values[0] == "" {
				return "empty, which is the default", nil
			}
			return "", errors.New("lockkeeper runs no command to find out. A systemd timer of yours can, and create /run/reboot-required. Until then no reboot of this kind is noticed")
		}},
	{Program: "kured", Name: "period", How: "not needed: a host notices a sentinel at once"},
	{Program: "kured", Name: "reboot-method", How: "lockkeeper reboots through logind, which inhibitors and the kubelet's graceful shutdown can delay"},
	{Program: "kured", Name: "reboot-command", How: "lockkeeper reboots through logind. What the command did before the reboot can be a hook of before-reboot"},
	{Program: "kured", Name: "reboot-signal", How: "lockkeeper reboots through logind"},
	{Program: "kured", Name: "lock-ttl", How: "not needed: there is no lock. A node that does not come back takes its slot until it does, or until you delete the Node"},
	{Program: "kured", Name: "prefer-no-schedule-taint", use: func(d *draft, v []string) (string, error) {
		d.kured.taint = v[0]
		return "", errors.New(taintHow)
	}, How: taintHow},
	{Program: "kured", Name: "annotate-nodes", boolean: true, How: "not needed: the label lockkeeper.dev/state is always there. `migrate --apply` removes the annotations"},
	{Program: "kured", Name: "pre-reboot-node-labels", repeats: true, use: useLabels, How: labelsHow},
	{Program: "kured", Name: "post-reboot-node-labels", repeats: true, use: useLabels, How: labelsHow},
	{Program: "kured", Name: "notify-url", Becomes: "[notify] url", secret: true, use: useNotify,
		How: notifyHow},
	{Program: "kured", Name: "slack-hook-url", Becomes: "[notify] url", secret: true, use: useNotify,
		How: notifyHow},
	{Program: "kured", Name: "slack-username", How: "the webhook of Slack has its own name"},
	{Program: "kured", Name: "slack-channel", How: "the webhook of Slack has its own channel"},
	{Program: "kured", Name: "message-template-drain", How: "the texts of notifications are lockkeeper's. [notify] on says which are sent"},
	{Program: "kured", Name: "message-template-reboot", How: "the texts of notifications are lockkeeper's. [notify] on says which are sent"},
	{Program: "kured", Name: "message-template-uncordon", How: "the texts of notifications are lockkeeper's. [notify] on says which are sent"},
	{Program: "kured", Name: "metrics-host", How: "[metrics] listen of the host's file; the default is 127.0.0.1:9477"},
	{Program: "kured", Name: "metrics-port", How: "[metrics] listen of the host's file; the default is 127.0.0.1:9477"},
	{Program: "kured", Name: "log-format", How: "lockkeeper logs to the journal, with fields"},
	{Program: "kured", Name: "node-id", How: "not needed: a host knows its Node by its credential"},
	{Program: "kured", Name: "ds-name", How: "not needed: it names the DaemonSet with kured's lock"},
	{Program: "kured", Name: "ds-namespace", How: "not needed: it names the DaemonSet with kured's lock"},
	{Program: "kured", Name: "lock-annotation", How: "not needed: it names kured's lock", use: func(d *draft, v []string) (string, error) { d.kured.lock = v[0]; return "", errNotNeeded }},
}

const labelsHow = "select by the label lockkeeper.dev/state instead, or set labels in hooks of before-drain and before-uncordon. The labels stay on the nodes and are named, because others may use them"

func useLabels(d *draft, values []string) (string, error) {
	for _, value := range values {
		for pair := range strings.SplitSeq(value, ",") {
			if key, _, ok := strings.Cut(pair, "="); ok && len(d.kured.labels) < maxArguments {
				d.kured.labels = append(d.kured.labels, key)
			}
		}
	}
	return "", errors.New(labelsHow)
}

var errNotNeeded = errors.New("not needed: it only names kured's lock")

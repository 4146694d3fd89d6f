package turn

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// marked is a Node with one key, written as "taint KEY=VALUE".
func marked(t *testing.T, marks ...string) *corev1.Node {
	n := &corev1.Node{}
	n.Labels, n.Annotations = map[string]string{}, map[string]string{}
	for _, mark := range marks {
		kind, rest, _ := strings.Cut(mark, " ")
		key, value, _ := strings.Cut(rest, "=")
		switch kind {
		case "taint":
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule})
		case "label":
			n.Labels[key] = value
		case "annotation":
			n.Annotations[key] = value
		default:
			t.Fatalf("no such kind: %q", mark)
		}
	}
	return n
}

// The keys and values are written by hand, from what the programs write.
func TestOwner(t *testing.T) {
	const (
		mco  = "annotation machineconfiguration.openshift.io/"
		fluo = "flatcar-linux-update.v1.flatcar-linux.net/"
		cluo = "container-linux-update.v1.coreos.com/"
	)
	named := map[string]bool{}
	for marks, owner := range map[string]string{
		"taint ToBeDeletedByClusterAutoscaler=1767268800":                        "cluster-autoscaler",
		"taint karpenter.sh/disrupted":                                           "Karpenter",
		"taint karpenter.sh/disruption=disrupting":                               "Karpenter",
		"taint medik8s.io/drain":                                                 "medik8s",
		"taint remediation.medik8s.io/self-node-remediation":                     "medik8s",
		"taint node.kubernetes.io/out-of-service=nodeshutdown":                   "an admin or medik8s",
		mco + "state=Working":                                                    "machine config operator",
		mco + "state=Degraded":                                                   "machine config operator",
		mco + "state=Done," + mco + "desiredConfig=b," + mco + "currentConfig=a": "machine config operator",
		mco + "desiredConfig=b":                                                  "machine config operator",
		mco + "state=Done," + mco + "desiredDrain=drain-b," + mco + "lastAppliedDrain=uncordon-a": "machine config operator",
		"taint aws-node-termination-handler/spot-itn=x":                                           "AWS node termination handler",
		"taint aws-node-termination-handler/scheduled-maintenance=x":                              "AWS node termination handler",
		"taint aws-node-termination-handler/asg-lifecycle-termination=x":                          "AWS node termination handler",
		"taint aws-node-termination-handler/rebalance-recommendation=x":                           "AWS node termination handler",
		"label aws-node-termination-handler/action=UncordonAfterReboot":                           "AWS node termination handler",
		"label cloud.google.com/active-node-maintenance=ONGOING":                                  "GKE",
		"taint cloud.google.com/impending-node-termination":                                       "GKE",
		"label kubernetes.azure.com/upgrade-status=Quarantined":                                   "AKS",
		"taint remediator.kubernetes.azure.com/unschedulable":                                     "AKS",
		"annotation " + fluo + "reboot-ok=true":                                                   "Flatcar Linux Update Operator",
		"annotation " + fluo + "reboot-in-progress=true":                                          "Flatcar Linux Update Operator",
		"annotation " + fluo + "agent-made-unschedulable=true":                                    "Flatcar Linux Update Operator",
		"label " + fluo + "before-reboot=true":                                                    "Flatcar Linux Update Operator",
		"label " + fluo + "after-reboot=true":                                                     "Flatcar Linux Update Operator",
		"annotation " + cluo + "reboot-ok=true":                                                   "Container Linux Update Operator",
		"annotation " + cluo + "reboot-in-progress=true":                                          "Container Linux Update Operator",
		"annotation weave.works/kured-reboot-in-progress=2026-01-01T12:00:00Z":                    "kured",
		"annotation kured.dev/kured-reboot-in-progress=2026-01-01T12:00:00Z":                      "kured",

		"": "",
		// Leftovers, wishes, and taints that may come and go.
		"annotation " + fluo + "reboot-ok=false,annotation " + fluo + "reboot-in-progress=false,annotation " + fluo + "reboot-needed=true,label " +
			fluo + "reboot-needed=true,annotation " + fluo + "agent-made-unschedulable=false,annotation " + fluo + "last-checked-time=1767268800,annotation " +
			fluo + "status=UPDATE_STATUS_UPDATED_NEED_REBOOT,label " + fluo + "id=flatcar": "",
		"annotation weave.works/kured-most-recent-reboot-needed=2026-01-01T12:00:00Z": "",
		"taint DeletionCandidateOfClusterAutoscaler=1767268800":                       "",
		"taint UpdateInProgress":                                   "",
		"taint node.cluster.x-k8s.io/outdated-revision":            "",
		"annotation cluster.x-k8s.io/machine=m1":                   "",
		"label kubernetes.azure.com/upgrade-status=Other":          "",
		"label cloud.google.com/active-node-maintenance=SCHEDULED": "",
		mco + "state=Done," + mco + "desiredConfig=a," + mco + "currentConfig=a," + mco + "desiredDrain=uncordon-a," + mco + "lastAppliedDrain=uncordon-a": "",
		// The kind counts: a user of labels cannot set a taint.
		"label ToBeDeletedByClusterAutoscaler=x":     "",
		"annotation karpenter.sh/disrupted=x":        "",
		"label " + fluo + "reboot-ok=true":           "",
		"taint weave.works/kured-reboot-in-progress": "",
	} {
		var all []string
		if marks != "" {
			all = strings.Split(marks, ",")
		}
		n := marked(t, all...)
		got := FromNode(n).Owner
		if name, _, _ := strings.Cut(got, ": "); name != owner {
			t.Errorf("%s: %q, want the owner %q", marks, got, owner)
		}
		for i := range v1alpha1.Marks() {
			if m := &v1alpha1.Marks()[i]; got != "" && strings.Contains(got, ": "+string(m.Kind)+" "+m.Key+"=") || strings.Contains(got, ": "+string(m.Kind)+" "+m.Key+" ") {
				named[string(m.Kind)+m.Key] = true
			}
		}
	}
	for _, m := range v1alpha1.Marks() {
		if !named[string(m.Kind)+m.Key] {
			t.Errorf("no case for the %s %s of %s", m.Kind, m.Key, m.Owner)
		}
	}
}

// TestDeleted checks which marks say that the node is being deleted, by whom and since when.
func TestDeleted(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	const none = "by nobody"
	for name, c := range map[string]struct {
		node *corev1.Node
		edit func(*corev1.Node)
		want string
	}{
		"the cluster autoscaler":         {marked(t, "taint ToBeDeletedByClusterAutoscaler=1767268800"), nil, "by cluster-autoscaler since 12:00"},
		"a value of another form":        {marked(t, "taint ToBeDeletedByClusterAutoscaler=soon"), nil, "by cluster-autoscaler"},
		"a value that is no time":        {marked(t, "taint ToBeDeletedByClusterAutoscaler=-5"), nil, "by cluster-autoscaler"},
		"a value of another century":     {marked(t, "taint ToBeDeletedByClusterAutoscaler=1767268800000"), nil, "by cluster-autoscaler"},
		"the value 0":                    {marked(t, "taint ToBeDeletedByClusterAutoscaler=0"), nil, "by cluster-autoscaler"},
		"the first value too many":       {marked(t, "taint ToBeDeletedByClusterAutoscaler=4294967296"), nil, "by cluster-autoscaler"},
		"another taint's time":           {marked(t, "taint medik8s.io/drain", "taint karpenter.sh/disrupted"), func(n *corev1.Node) { n.Spec.Taints[0].TimeAdded = &at }, "by Karpenter"},
		"a candidate":                    {marked(t, "taint DeletionCandidateOfClusterAutoscaler=1767268800"), nil, none},
		"Karpenter":                      {marked(t, "taint karpenter.sh/disrupted"), nil, "by Karpenter"},
		"Karpenter, with a time":         {marked(t, "taint karpenter.sh/disrupted"), func(n *corev1.Node) { n.Spec.Taints[0].TimeAdded = &at }, "by Karpenter since 12:00"},
		"Karpenter before 1.0":           {marked(t, "taint karpenter.sh/disruption=disrupting"), nil, "by Karpenter"},
		"the end of a spot instance":     {marked(t, "taint aws-node-termination-handler/spot-itn=x"), nil, "by AWS node termination handler"},
		"maintenance":                    {marked(t, "taint medik8s.io/drain"), nil, none},
		"a mark before that":             {marked(t, "annotation kured.dev/kured-reboot-in-progress=x", "taint karpenter.sh/disrupted"), nil, "by Karpenter"},
		"marks before and between":       {marked(t, "taint medik8s.io/drain", "taint aws-node-termination-handler/spot-itn=x"), nil, "by AWS node termination handler"},
		"a host's own annotation":        {marked(t, "annotation karpenter.sh/disrupted=x"), nil, none},
		"a Node that is being deleted":   {marked(t), func(n *corev1.Node) { n.DeletionTimestamp, n.Finalizers = &at, []string{"example.org/x"} }, "by another program since 12:00"},
		"Karpenter deletes it":           {marked(t, "taint karpenter.sh/disrupted"), func(n *corev1.Node) { n.DeletionTimestamp, n.Finalizers = &at, []string{"karpenter.sh/termination"} }, "by Karpenter since 12:00"},
		"a finalizer without a deletion": {marked(t), func(n *corev1.Node) { n.Finalizers = []string{"karpenter.sh/termination"} }, none},
	} {
		if c.edit != nil {
			c.edit(c.node)
		}
		n, got := FromNode(c.node), none
		if n.Deleted {
			got = "by " + n.OwnerName
			if n.Owner == "" {
				t.Errorf("%s: no mark", name)
			}
		}
		if n.Deleted && !n.OwnerSince.IsZero() {
			got += " since " + n.OwnerSince.UTC().Format("15:04")
		}
		if got != c.want {
			t.Errorf("%s: it is deleted %s, expected %s", name, got, c.want)
		}
	}
	for _, m := range v1alpha1.Marks() {
		if m.Deletes && m.Kind != v1alpha1.MarkTaint {
			t.Errorf("a kubelet can set the %s %s, which takes a slot", m.Kind, m.Key)
		}
	}
}

// A text names the owner, the mark and what it means, in one line of bounded length.
func TestOwnerText(t *testing.T) {
	for mark, want := range map[string]string{
		"taint karpenter.sh/disrupted": "Karpenter: taint karpenter.sh/disrupted (it replaces the node)",
		"annotation machineconfiguration.openshift.io/state=Working\n" + strings.Repeat("x", 1000): "machine config operator: annotation machineconfiguration.openshift.io/state=Working " +
			strings.Repeat("x", 89) + "… (it works on the node, or its work failed)",
	} {
		if got := FromNode(marked(t, mark)).Owner; got != want {
			t.Errorf("%.60s:\n%s\n%s", mark, got, want)
		}
	}
}

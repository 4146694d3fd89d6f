package faults

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
)

// shape describes everything that a write changes, without what differs from turn to turn.
func shape(r *faultproxy.Request) string {
	switch {
	case r.Is("create", "selfsubjectreviews"):
		return "whoami"
	case r.Is("create", "pods/eviction"):
		return "evict"
	case r.Is("patch", "disruptionpolicies/status"):
		return "status of a policy"
	case r.Is("patch", "hostupdates"):
		return "publish"
	case r.Is("update", "leases"):
		return leaseShape(r)
	case r.Is("patch", "nodes/status"):
		return "conditions"
	case r.Is("patch", "nodes"):
		return patchShape(r)
	}
	return fmt.Sprintf("%s %s %s/%s", r.Verb, r.Group, r.Resource, r.Subresource)
}

func leaseShape(r *faultproxy.Request) string {
	obj, err := r.Object()
	l, ok := obj.(*coordinationv1.Lease)
	switch {
	case err != nil || !ok:
		return fmt.Sprintf("an unreadable lease: %T, %v", obj, err)
	case l.ResourceVersion == "":
		return "a lease without a resourceVersion"
	case l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "":
		return "release"
	case l.Spec.AcquireTime == nil || l.Spec.RenewTime == nil:
		return "a lease without times"
	case l.Spec.AcquireTime.Equal(l.Spec.RenewTime):
		return "acquire"
	}
	return "renew"
}

// patchShape lists what a merge patch of a Node changes: label=value, annotation or annotation-, sorted. Some parts may
// accompany others: a host may publish with any report, and a coordinator may change the held reason with any move.
func patchShape(r *faultproxy.Request) string {
	var doc struct {
		Metadata struct {
			ResourceVersion     string
			Labels, Annotations map[string]*string
		}
		Spec struct{ Unschedulable *bool }
	}
	decoder := json.NewDecoder(strings.NewReader(string(r.Body)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&doc); err != nil {
		return "an unreadable patch: " + err.Error()
	}
	if doc.Metadata.ResourceVersion == "" {
		return "a patch without a resourceVersion"
	}
	parts := map[string]bool{}
	for key, value := range doc.Metadata.Labels {
		switch key {
		case v1alpha1.LabelOS, v1alpha1.LabelOSVersion, v1alpha1.LabelGroup:
			parts["info"+sign(value)] = true
		default:
			name := strings.TrimPrefix(key, v1alpha1.Prefix)
			if value == nil {
				parts[name+"-"] = true
			} else {
				parts[name+"="+*value] = true
			}
		}
	}
	for key, value := range doc.Metadata.Annotations {
		name := strings.TrimPrefix(key, v1alpha1.Prefix)
		switch {
		case strings.HasPrefix(key, v1alpha1.HookPrefix):
			parts["hooks"+sign(value)] = true
		case key == v1alpha1.AnnotationAck && value != nil:
			a, err := v1alpha1.ParseAck(*value)
			if err != nil {
				return "an unreadable ack: " + err.Error()
			}
			word := fmt.Sprintf("ack=%s/%s", a.State, a.Report)
			if a.Reason != "" {
				word += ":" + string(a.Reason)
			}
			parts[word] = true
		default:
			parts[name+sign(value)] = true
		}
	}
	if u := doc.Spec.Unschedulable; u != nil {
		parts[fmt.Sprintf("unschedulable=%t", *u)] = true
	}
	return tidy(parts)
}

func sign(value *string) string {
	if value == nil {
		return "-"
	}
	return ""
}

// tidy joins the parts of a patch. It drops the information labels, because they never appear without host and wants,
// and the confirmations of hooks, because they accompany every change of the state.
func tidy(parts map[string]bool) string {
	if parts["host"] {
		delete(parts, "info")
	}
	all := make([]string, 0, len(parts))
	moves := false
	for part := range parts {
		moves = moves || strings.HasPrefix(part, "state")
	}
	for part := range parts {
		if moves && (part == "hooks-" || part == "held-") {
			continue
		}
		all = append(all, part)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestShape(t *testing.T) {
	for body, want := range map[string]string{
		`{"metadata":{"resourceVersion":"7","labels":{"lockkeeper.dev/held":null,"lockkeeper.dev/state":"draining"},"annotations":{"lockkeeper.dev/grant":"{}","lockkeeper.dev/turn":"a","hook.lockkeeper.dev/x":null}}}`: "grant state=draining turn",
		`{"metadata":{"resourceVersion":"7","labels":{"lockkeeper.dev/held":null}}}`:                                                                                   "held-",
		`{"metadata":{"resourceVersion":"7","annotations":{"lockkeeper.dev/cordon":"t","lockkeeper.dev/ack":"t/b/draining/committed"}},"spec":{"unschedulable":true}}`: "ack=draining/committed cordon unschedulable=true",
		`{"metadata":{"labels":{"lockkeeper.dev/held":null}}}`:                                                                                                         "a patch without a resourceVersion",
		`{"metadata":{"resourceVersion":"7"},"status":{}}`:                                                                                                             `an unreadable patch: json: unknown field "status"`,
		`{"metadata":{"resourceVersion":"7","labels":{"lockkeeper.dev/new":"x","other":"y"}}}`:                                                                         "new=x other=y",
	} {
		r := &faultproxy.Request{Verb: "patch", Resource: "nodes", Name: "n", Body: []byte(body)}
		if got := shape(r); got != want {
			t.Errorf("%s\nis %q, expected %q", body, got, want)
		}
	}
}

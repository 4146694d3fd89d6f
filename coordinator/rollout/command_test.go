package rollout_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// onHost carries out a command about one host and its Node.
func (c *cluster) onHost(verb string, n *corev1.Node, h *host, rest string) error {
	if n != nil {
		defer c.bump(n)
	}
	annotate := func(key, value string) { n.Annotations[key] = value }
	switch verb {
	case "update":
		h.pending, h.next = rest, rest
	case "cancel": // ResetStatus: the next boot boots the new version anyway
		h.pending = ""
	case "file": // /etc/app changes
		h.file = true
	case "rollback": // the next boot comes up with what runs now
		h.next = h.version
	case "label": // label n1 pool web
		key, value, _ := strings.Cut(rest, " ")
		n.Labels[key] = value
	case "volumes":
		attach(n, strings.Fields(rest))
	case "unread", "read":
		h.unread = verb == "unread"
	case "kill", "start":
		h.process, h.drain, h.look = verb == "start", step.Drain{}, nil
	case "crash":
		c.down(h)
	case "dies":
		c.down(h)
		h.upAt = time.Time{}
	case "block", "unblock":
		h.stuck = verb == "block"
	case "sick", "well":
		h.unhealthy = verb == "sick"
	case "cordon", "uncordon":
		// A cordon over our mark cannot be told from ours: DESIGN section 5.
		_, ours := n.Annotations[v1alpha1.AnnotationCordon]
		h.adminCordon, n.Spec.Unschedulable = verb == "cordon" && !ours, verb == "cordon"
	case "pause":
		annotate(v1alpha1.AnnotationPaused, rest)
	case "resume":
		delete(n.Annotations, v1alpha1.AnnotationPaused)
	case "detach":
		annotate(v1alpha1.AnnotationDetached, rest)
	case "attach":
		delete(n.Annotations, v1alpha1.AnnotationDetached)
	case "managed":
		if delete(n.Labels, v1alpha1.LabelManaged); rest != "absent" {
			n.Labels[v1alpha1.LabelManaged] = rest
		}
	case "default": // the host's file has another managed_by_default, and is read again
		h.managed = rest == "true"
	case "retry":
		annotate(v1alpha1.AnnotationRetry, rest)
	case "hook":
		annotate(v1alpha1.HookAnnotation(rest), n.Annotations[v1alpha1.AnnotationTurn])
	case "edit": // somebody edits a key of ours: edit n1 state idle
		key, value, _ := strings.Cut(rest, " ")
		m := n.Annotations
		if key == "state" {
			m = n.Labels
		}
		if delete(m, v1alpha1.Prefix+key); value != "" {
			m[v1alpha1.Prefix+key] = value
		}
	case "delete":
		delete(c.nodes, h.name)
	case "create":
		c.create(h.name, c.now)
	case "lost": // a leader's write with an outcome that is not known
		c.uncertain[h.name] = c.fact(h.name)
	case "found":
		delete(c.uncertain, h.name)
	default:
		return fmt.Errorf("no such command")
	}
	return nil
}

func (c *cluster) addNode(name string, words []string) error {
	n, h := c.add(name)
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "pool":
			n.Labels["pool"] = value
		case "zone":
			n.Labels[corev1.LabelTopologyZone] = value
		case "control-plane":
			n.Labels[turn.LabelControlPlane] = ""
		case "up": // how long it has been up
			d, err := time.ParseDuration(value)
			if err != nil {
				return err
			}
			h.bootAt = c.now.Add(-d)
		case "allowlist":
			h.managed = false
		case "no-process":
			h.process = false
		default:
			return fmt.Errorf("no such fact: %s", w)
		}
	}
	return nil
}

// late lets a leader that lost its term send what it had decided about a node
// from the snapshot that it kept. The API server takes it if the Node is the
// same version still.
func (c *cluster) late(epoch, name string) error {
	s, ok := c.taken[epoch]
	if !ok {
		return fmt.Errorf("no snapshot of %s", epoch)
	}
	for _, n := range s.Nodes {
		if n.Name == name && n.ResourceVersion != c.nodes[name].ResourceVersion {
			c.logf("# late %s %s: a conflict", epoch, name)
			return nil
		}
	}
	for _, v := range rollout.Decide(s).Verdicts {
		if v.Node == name && v.Move != nil {
			c.logf("# late %s %s", epoch, name)
			c.stale = true
			c.move(v)
			c.stale = false
			return nil
		}
	}
	return fmt.Errorf("%s had decided nothing about %s", epoch, name)
}

// runUntil: until NODE facts... [within D], or until rest [within D].
func (c *cluster) runUntil(args []string) error {
	if len(args) < 2 || args[0] != "until" {
		return fmt.Errorf("expected: run until ...")
	}
	limit := 2 * time.Hour
	if i := slices.Index(args, "within"); i > 0 {
		d, err := time.ParseDuration(args[i+1])
		if err != nil {
			return err
		}
		limit, args = d, args[:i]
	}
	var why error
	cond := func() bool {
		if args[1] == "rest" {
			if s := c.atRest(); s != "" {
				why = fmt.Errorf("%s", s)
				return false
			}
			return true
		}
		why = c.expect(args[1], args[2:])
		return why == nil
	}
	if !c.run(limit, cond) {
		return fmt.Errorf("not within %v: %w", limit, why)
	}
	return nil
}

// expect compares facts about a node, key=value; "none" is absent.
func (c *cluster) expect(name string, words []string) error {
	if name == "disturbed" {
		if got := strconv.Itoa(c.disturbed()); got != words[0] {
			return fmt.Errorf("%s disturbed", got)
		}
		return nil
	}
	h, n := c.hosts[name], c.fact(name)
	if h == nil {
		return fmt.Errorf("no host %q", name)
	}
	yes := func(b bool) string { return map[bool]string{true: "yes", false: "no"}[b] }
	facts := map[string]string{
		"state": n.State.String(), "held": string(n.Held), "wants": string(n.Wants), "turn": n.Turn,
		"cordon": yes(n.Unschedulable), "mark": yes(n.Mark), "version": h.version, "pods": strconv.Itoa(h.pods),
		"ack": strings.TrimPrefix(n.Ack.String(), n.Ack.Turn+"/"+n.Ack.BootID+"/"), "boots": strconv.Itoa(h.boots),
		"paused": yes(n.Paused != nil), "evicts": yes(h.drain.Running), "applies": yes(h.apply.Running), "down": yes(h.goingDown), "keys": yes(len(n.Turn)+len(n.State)+len(n.Wants)+len(n.RawHost) > 0),
	}
	total := 0
	for _, count := range h.reboots {
		total += count
	}
	facts["reboots"] = strconv.Itoa(total)
	if n.Last != nil {
		facts["result"], facts["reason"], facts["attempts"] = string(n.Last.Result), string(n.Last.Reason), strconv.Itoa(n.Last.Attempts)
	}
	if n.Grant != nil {
		facts["epoch"], facts["policy"], facts["force"] = n.Grant.Epoch, n.Grant.Policy, yes(n.Grant.Force)
	}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		if got := cmp.Or(facts[key], "none"); got != value {
			return fmt.Errorf("%s %s=%s, expected %s", name, key, got, value)
		}
	}
	return nil
}

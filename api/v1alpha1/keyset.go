package v1alpha1

import "fmt"

// Keys are what lockkeeper's labels and annotations on one Node say, decoded.
// Both cores, the referee's twin and `lockkeeper status` read Nodes through
// it, so that all of them take a broken value the same way: as if it were
// not there, with a [Problem] that says so.
type Keys struct {
	State   State
	Wants   Wants
	Held    Reason
	Managed *bool // nil: absent

	Host   *Host
	Ack    Ack
	Turn   string
	Grant  *Grant // nil: absent or unreadable
	Last   *Last
	Mark   bool // AnnotationCordon is present
	Paused *Intent
	// Detached and Request are nil when absent; Detached is not nil when its
	// payload is broken.
	Detached *Intent
	Request  *Request
	Retry    string
	// Hooks are the confirmations found: hook's name to turn's id.
	Hooks map[string]string
	// Info is the host's information labels, LabelOS and so on, as they are.
	Info map[string]string
	// RawHost is AnnotationHost as it is, to see whether it was written again.
	RawHost string
	// Problems are the values that could not be read.
	Problems []Problem
}

// Problem is one key whose value could not be read.
type Problem struct {
	Key string
	Err error
}

// String names the key and what was wrong with its value.
func (p Problem) String() string { return fmt.Sprintf("%s: %v", p.Key, p.Err) }

// ReadKeys decodes a Node's labels and annotations. It never fails: what
// cannot be read is left out and listed in Problems, in a stable order.
func ReadKeys(labels, annotations map[string]string) Keys {
	k := Keys{
		State: State(labels[LabelState]),
		Held:  Reason(labels[LabelHeld]),
		Turn:  annotations[AnnotationTurn],
		Retry: annotations[AnnotationRetry],
	}
	problem := func(key string, err error) {
		if err != nil {
			k.Problems = append(k.Problems, Problem{key, err})
		}
	}
	if !k.State.Known() {
		problem(LabelState, fmt.Errorf("%q is not a state", clip(string(k.State))))
	}
	if w, ok := labels[LabelWants]; ok {
		if k.Wants = Wants(w); !k.Wants.Known() {
			problem(LabelWants, fmt.Errorf("%q, expected nothing, apply, drain or reboot", clip(w)))
			k.Wants = ""
		}
	}
	if m, ok := labels[LabelManaged]; ok {
		// Whatever is not "true" keeps hands off: somebody who typed "False"
		// or "no" did not ask for a reboot.
		v := m == "true"
		k.Managed = &v
		if !v && m != "false" {
			problem(LabelManaged, fmt.Errorf("%q, expected true or false; taken as false", clip(m)))
		}
	}
	for _, key := range []string{LabelOS, LabelOSVersion, LabelGroup} {
		if v, ok := labels[key]; ok {
			if k.Info == nil {
				k.Info = map[string]string{}
			}
			k.Info[key] = v
		}
	}
	var err error
	k.RawHost = annotations[AnnotationHost]
	k.Host, err = ParseHost(k.RawHost)
	problem(AnnotationHost, err)
	k.Ack, err = ParseAck(annotations[AnnotationAck])
	problem(AnnotationAck, err)
	k.Grant, err = ParseGrant(annotations[AnnotationGrant])
	problem(AnnotationGrant, err)
	k.Last, err = ParseLast(annotations[AnnotationLast])
	problem(AnnotationLast, err)
	_, k.Mark = annotations[AnnotationCordon]
	if v, ok := annotations[AnnotationPaused]; ok {
		i, err := ParseIntent(v)
		k.Paused = &i
		problem(AnnotationPaused, err)
	}
	if v, ok := annotations[AnnotationDetached]; ok {
		i, err := ParseIntent(v)
		k.Detached = &i
		problem(AnnotationDetached, err)
	}
	if v, ok := annotations[AnnotationRequest]; ok {
		r, err := ParseRequest(v)
		if err == nil {
			k.Request = &r
		}
		problem(AnnotationRequest, err)
	}
	for key, value := range annotations {
		if name, ok := HookName(key); ok {
			if k.Hooks == nil {
				k.Hooks = map[string]string{}
			}
			k.Hooks[name] = value
		}
	}
	return k
}

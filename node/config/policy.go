package config

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"github.com/BurntSushi/toml"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// wait is a duration in a policy's file.
type wait time.Duration

// UnmarshalText is for toml; its error gets the line there.
func (w *wait) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q, expected a duration with its unit, such as \"90s\"", clip(string(text)))
	}
	*w = wait(d)
	return nil
}

type hookFile struct {
	Name      string             `toml:"name"`
	Timeout   *wait              `toml:"timeout"`
	OnTimeout v1alpha1.OnTimeout `toml:"on_timeout"`
}

// policyFile is a policy as a file has it; what is absent is the built-in's.
type policyFile struct {
	MaxUnavailable *int  `toml:"max_unavailable"`
	MaxFailed      *int  `toml:"max_failed"`
	Settle         *wait `toml:"settle"`
	Backoff        *wait `toml:"backoff"`
	BackoffMax     *wait `toml:"backoff_max"`
	Paused         *bool `toml:"paused"`

	Seen           *wait               `toml:"seen"`
	Draining       *wait               `toml:"draining"`
	DrainOnTimeout *v1alpha1.OnTimeout `toml:"drain_on_timeout"`
	Rebooting      *wait               `toml:"rebooting"`
	Applying       *wait               `toml:"applying"`
	HostHooks      *wait               `toml:"host_hooks"`
	Uncordoning    *wait               `toml:"uncordoning"`

	BeforeDrain    []hookFile `toml:"before_drain"`
	BeforeReboot   []hookFile `toml:"before_reboot"`
	BeforeUncordon []hookFile `toml:"before_uncordon"`
}

// LoadPolicy reads a policy from a file in place of the built-in one, for the
// hidden flag --policy until policies are objects in the cluster. Keys that are
// absent are the built-in's; hooks without on_timeout have Abort, or Wait in
// before_uncordon, and without timeout 30m. The error is an [Errors].
func LoadPolicy(path string) (policy.Policy, error) {
	data, err := readFile(path)
	if err != nil {
		return policy.Policy{}, Errors{{File: path, Err: err}}
	}
	return parsePolicy(path, data)
}

func parsePolicy(path string, data []byte) (policy.Policy, error) {
	var f policyFile
	md, err := toml.Decode(string(data), &f)
	if err != nil {
		return policy.Policy{}, Errors{policyError(path, err)}
	}
	if unknown := md.Undecoded(); len(unknown) > 0 {
		var errs Errors
		for _, key := range unknown {
			errs = append(errs, &Error{File: path, Line: lineOf(data, key), Key: clip(key.String()), Got: "not a known key", Expected: "a key of a policy"})
		}
		return policy.Policy{}, errs
	}
	obj := &v1alpha1.DisruptionPolicy{Spec: f.spec()}
	obj.Name = filepath.Base(path)
	p := policy.Compile(obj, time.LoadLocation)
	if len(p.Problems) > 0 {
		return policy.Policy{}, Errors{{File: path, Err: errors.New(p.Problems[0].String())}}
	}
	return p, nil
}

// policyError gives a decoder's mistake its place. A value that is refused has
// its key and what was expected in the message; everything else is syntax.
func policyError(path string, err error) *Error {
	if pe, ok := errors.AsType[toml.ParseError](err); ok {
		return &Error{File: path, Line: pe.Position.Line, Key: pe.LastKey, Err: errors.New(pe.Message)}
	}
	return &Error{File: path, Err: err}
}

// lineOf finds a key again in a text that is known to be TOML.
func lineOf(data []byte, key toml.Key) int {
	var root map[string]toml.Primitive
	md, err := toml.Decode(string(data), &root)
	if err != nil {
		return 0
	}
	w := &walk{md: &md}
	line := 0
	for _, part := range key {
		value, ok := root[part]
		if !ok {
			break
		}
		line = max(line, w.line(value))
		var tables []map[string]toml.Primitive
		root = nil
		if md.PrimitiveDecode(value, &tables) == nil {
			// The decoder knows one line for all tables of a list: the last.
			for _, t := range tables {
				root = t
			}
		} else if md.PrimitiveDecode(value, &root) != nil {
			break
		}
	}
	return line
}

func (f *policyFile) spec() v1alpha1.DisruptionPolicySpec {
	p := policy.Defaults()
	if f.MaxUnavailable != nil {
		p.Rollout.MaxUnavailable = intstr.FromInt32(int32(min(*f.MaxUnavailable, math.MaxInt32)))
	}
	if f.MaxFailed != nil {
		p.Rollout.MaxFailed = int32(min(*f.MaxFailed, math.MaxInt32))
	}
	set(&p.Paused, f.Paused)
	set(&p.Drain.OnTimeout, f.DrainOnTimeout)
	for _, d := range []struct {
		to   *metav1.Duration
		from *wait
	}{
		{&p.Rollout.Settle, f.Settle}, {&p.Rollout.Backoff, f.Backoff}, {&p.Rollout.BackoffMax, f.BackoffMax},
		{&p.Timeouts.Seen, f.Seen}, {&p.Drain.Timeout, f.Draining},
		{&p.Timeouts.Rebooting, f.Rebooting}, {&p.Timeouts.Applying, f.Applying},
		{&p.Timeouts.HostHooks, f.HostHooks}, {&p.Timeouts.Uncordoning, f.Uncordoning},
	} {
		if d.from != nil {
			d.to.Duration = time.Duration(*d.from)
		}
	}
	p.Hooks.BeforeDrain = hooks[v1alpha1.HookSpec](f.BeforeDrain, v1alpha1.OnTimeoutAbort)
	p.Hooks.BeforeReboot = hooks[v1alpha1.HookSpec](f.BeforeReboot, v1alpha1.OnTimeoutAbort)
	p.Hooks.BeforeUncordon = hooks[v1alpha1.UncordonHookSpec](f.BeforeUncordon, v1alpha1.OnTimeoutWait)
	return p
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

func hooks[T v1alpha1.HookSpec | v1alpha1.UncordonHookSpec](from []hookFile, onTimeout v1alpha1.OnTimeout) []T {
	var out []T
	for _, h := range from {
		hook := v1alpha1.HookSpec{Name: h.Name, Timeout: metav1.Duration{Duration: 30 * time.Minute}, OnTimeout: onTimeout}
		if h.Timeout != nil {
			hook.Timeout.Duration = time.Duration(*h.Timeout)
		}
		if h.OnTimeout != "" {
			hook.OnTimeout = h.OnTimeout
		}
		out = append(out, T(hook))
	}
	return out
}

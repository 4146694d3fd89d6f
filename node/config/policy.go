package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/BurntSushi/toml"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	p := f.policy()
	p.Name = filepath.Base(path)
	if err := p.Validate(); err != nil {
		return policy.Policy{}, Errors{{File: path, Err: err}}
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

func (f *policyFile) policy() policy.Policy {
	p := policy.Default()
	set(&p.MaxUnavailable, f.MaxUnavailable)
	set(&p.MaxFailed, f.MaxFailed)
	set(&p.Paused, f.Paused)
	set(&p.Terms.DrainTimeout, f.DrainOnTimeout)
	for _, d := range []struct {
		to   *time.Duration
		from *wait
	}{
		{&p.Settle, f.Settle}, {&p.Backoff, f.Backoff}, {&p.BackoffMax, f.BackoffMax},
		{&p.Terms.Seen.Duration, f.Seen}, {&p.Terms.Draining.Duration, f.Draining},
		{&p.Terms.Rebooting.Duration, f.Rebooting}, {&p.Terms.Applying.Duration, f.Applying},
		{&p.Terms.HostHooks.Duration, f.HostHooks}, {&p.Terms.Uncordoning.Duration, f.Uncordoning},
	} {
		if d.from != nil {
			*d.to = time.Duration(*d.from)
		}
	}
	p.Terms.BeforeDrain = hooks(f.BeforeDrain, v1alpha1.OnTimeoutAbort)
	p.Terms.BeforeReboot = hooks(f.BeforeReboot, v1alpha1.OnTimeoutAbort)
	p.Terms.BeforeUncordon = hooks(f.BeforeUncordon, v1alpha1.OnTimeoutWait)
	return p
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

func hooks(from []hookFile, onTimeout v1alpha1.OnTimeout) []v1alpha1.Hook {
	var out []v1alpha1.Hook
	for _, h := range from {
		hook := v1alpha1.Hook{Name: h.Name, Timeout: metav1.Duration{Duration: 30 * time.Minute}, OnTimeout: onTimeout}
		if h.Timeout != nil {
			hook.Timeout.Duration = time.Duration(*h.Timeout)
		}
		if h.OnTimeout != "" {
			hook.OnTimeout = h.OnTimeout
		}
		out = append(out, hook)
	}
	return out
}

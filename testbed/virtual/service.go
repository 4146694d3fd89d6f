package virtual

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/memhost"
)

// service is a unit of each host that reads the files in confDir when it starts. A rule may restart another unit after it.
const (
	service      = "app.service"
	afterService = "exporter.service"
	confDir      = "/etc/app"
)

// served is what a host's service has read, and what it is judged by. The machine's mutex guards it.
type served struct {
	contents int               // that files have had
	before   map[string]string // what files had before their last change, by name; without those that did not exist
	read     map[string]string // the files that the service runs with, by name
	reads    map[string]string // those that it has read in the start that is under way
	noticed  map[string]bool   // the files that changed after the host had read what is in effect
	failed   bool              // its last start
	ended    map[string]bool   // the turns whose end was judged
	applied  time.Time         // when the Node was last committed to an apply, and then was not
	applies  bool              // the Node is committed to an apply
}

// started takes the start of the service, which runs with these files.
func (s *served) started(files map[string]string) {
	s.read, s.failed = files, false
}

// defineService defines the host's service, which runs from the start of each boot.
func (m *Machine) defineService() {
	m.service.noticed, m.service.ended, m.service.before = map[string]bool{}, map[string]bool{}, map[string]string{}
	kind := "exec" // a start that hangs fails after 90 s
	if m.oneshot {
		kind = "oneshot" // it does not
	}
	m.mem.Units().Set(service, memhost.Unit{
		Type: kind, RemainAfterExit: true, Active: "active", StartTakes: 2 * time.Second, StopTakes: time.Second,
		Began: m.serviceBegan, Ended: m.serviceEnded,
	})
	m.mem.Units().Set(afterService, memhost.Unit{Type: "exec", Active: "active", StartTakes: time.Second})
}

func (m *Machine) serviceBegan(r memhost.Run) {
	m.f.logf("%s starts %s", m.name, r.Unit)
	m.mu.Lock()
	m.service.reads = m.files()
	m.mu.Unlock()
	m.f.exec.start(func() { m.f.exec.Happened(m.f.ctx, m.name, "restart") })
}

func (m *Machine) serviceEnded(r memhost.Run) {
	m.f.logf("%s: the start of %s: %s", m.name, r.Unit, r.Result)
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Result == "success" {
		m.service.started(m.service.reads)
	} else {
		m.service.failed = true
	}
}

// files returns the contents of the service's files, by name.
func (m *Machine) files() map[string]string {
	files := map[string]string{}
	dir := filepath.Join(m.root, confDir)
	entries, err := os.ReadDir(dir)
	if !os.IsNotExist(err) {
		m.f.must(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		m.f.must(err)
		files[e.Name()] = string(text)
	}
	return files
}

// content is what a file of a service changes to.
type content string

const (
	contentNew  content = ""     // what it never was
	contentRead content = "back" // what the service runs with
	contentUndo content = "undo" // what it was before its last change
)

// changeFile changes a file of the service on a host that is up. What did not exist is removed.
func (m *Machine) changeFile(name string, to content) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.service
	if !m.up {
		return
	}
	path := filepath.Join(confDir, name)
	s.noticed[name] = m.watches()
	text, exists := s.read[name]
	switch to {
	case contentUndo:
		text, exists = s.before[name]
	case contentNew:
		s.contents++
		text, exists = fmt.Sprint(s.contents), true
	}
	if was, existed := m.files()[name]; existed {
		s.before[name] = was
	} else {
		delete(s.before, name)
	}
	if exists {
		m.f.must(m.mem.WriteFile(path, text))
	} else {
		m.f.must(m.mem.RemoveFile(path))
	}
}

// watches reports whether the host has recorded in this boot what is in effect of confDir. A change before that is in effect as it is.
func (m *Machine) watches() bool {
	text, err := os.ReadFile(filepath.Join(m.root, node.StateDir, "baseline.json"))
	if os.IsNotExist(err) {
		return false
	}
	var baseline struct {
		BootID string
		Roots  map[string]time.Time
	}
	if err == nil {
		err = json.Unmarshal(text, &baseline)
	}
	m.f.must(err)
	_, covered := baseline.Roots[confDir]
	return covered && baseline.BootID == m.mem.BootID()
}

// notInEffect says which file has changed since the service read it, if a rule restarts the service for it; "" if none has.
func (m *Machine) notInEffect() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, files := &m.service, m.files()
	for _, name := range slices.Sorted(maps.Keys(s.noticed)) {
		was, existed := s.read[name]
		if is, exists := files[name]; m.f.opts.Apply != nil && s.noticed[name] && (is != was || exists != existed) {
			return fmt.Sprintf("%s was not restarted since %s/%s changed from %q to %q", service, confDir, name, was, is)
		}
	}
	return ""
}

// appliesNow reports whether the Node commits its host to an apply.
func appliesNow(n *turn.Node) bool {
	return n.State == v1alpha1.StateApplying && n.HasReport(v1alpha1.ReportCommitted)
}

// judgeApplying takes a new version of the host's Node. A turn that has applied a plan is not done if the service does not run.
func (m *Machine) judgeApplying(n *turn.Node) {
	m.mu.Lock()
	s := &m.service
	if s.applies {
		s.applied = time.Now()
	}
	s.applies = appliesNow(n)
	l := n.Last
	judged := l == nil || s.ended[l.Turn]
	if !judged {
		s.ended[l.Turn] = true
	}
	failed := s.failed
	m.mu.Unlock()
	if !judged && failed && l.Result == v1alpha1.ResultDone && v1alpha1.Has(l.Changes, v1alpha1.SourceFile) && !m.f.attacked(m.name) {
		m.f.problem("Apply: the turn %s of %s is done, and %s has failed", l.Turn, m.name, service)
	}
}

// restoredApply takes the host's Node out of a store that was set back. A host that has read that it may apply still may, as long as its
// last reads count.
func (m *Machine) restoredApply(obj *corev1.Node) {
	var n turn.Node
	if obj != nil {
		n = turn.FromNode(obj)
	}
	m.judgeApplying(&n)
}

// applies checks what the host does now: it reloads and restarts units only while its Node is committed to an apply, or as long after that
// as its last reads count.
func (m *Machine) applies(what string) {
	var n turn.Node
	if obj := m.f.Node(m.name); obj != nil {
		n = turn.FromNode(obj)
	}
	m.mu.Lock()
	committed := appliesNow(&n) || time.Since(m.service.applied) <= mostAge+clockSlack
	thawed := time.Since(m.reads.thawed) < clockSlack
	m.mu.Unlock()
	if !committed && !thawed {
		m.f.problem("Apply: %s: %s, and its Node is in %s with the ack %q", m.name, what, n.State, n.Ack)
	}
}

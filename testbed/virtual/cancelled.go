package virtual

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/engine"
)

// wantsReboot reports whether something requests a reboot of the host now: an update that its engine has staged, a sentinel, or an admin.
// It looks at the host itself, and not at what lockkeeper has published.
func (m *Machine) wantsReboot() bool {
	for _, name := range []string{engine.Marker, sentinel} {
		_, err := os.Stat(filepath.Join(m.root, name))
		if err == nil {
			return true
		}
		if !errors.Is(err, fs.ErrNotExist) {
			m.f.must(err)
		}
	}
	obj := m.f.Node(m.name)
	return obj != nil && requested(obj)
}

func requested(obj *corev1.Node) bool { return turn.FromNode(obj).Request != nil }

// noteWant remembers that something has requested a reboot until now. Its caller calls it right before it takes that back.
func (m *Machine) noteWant() {
	if !m.wantsReboot() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads.wanted = time.Now()
}

// judgeRequest takes a new version of the host's Node, nil if it was deleted.
func (m *Machine) judgeRequest(old, obj *corev1.Node) {
	if old != nil && requested(old) && (obj == nil || !requested(obj)) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.reads.wanted = time.Now()
	}
}

// judgeWant checks that the host reboots only for what requests that, or has requested it when the host read its sources: it reads them again
// at most 10 s before. A FleetLock client is judged in [agentRun.permitted].
func (m *Machine) judgeWant(what string) {
	if m.client != nil || m.f.attacked(m.name) || m.wantsReboot() {
		return
	}
	m.mu.Lock()
	age := time.Since(m.reads.wanted)
	thawed := time.Since(m.reads.thawed) < clockSlack // what was sent before the process was frozen
	m.mu.Unlock()
	if age > mostAge+clockSlack && !thawed && m.f.sinceRewind() > mostAge+clockSlack {
		m.f.problem("Cancelled: %s: %s, and nothing has requested that for %v", m.name, what, age.Round(time.Second))
	}
}

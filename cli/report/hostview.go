package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/node/local"
)

// HostView is what one host knows, for when the cluster cannot be read.
// Its JSON form is that of `lockkeeper status -o json` then.
type HostView struct {
	// View is "host".
	View string `json:"view"`
	// Time is the present time, by this host's clock.
	Time time.Time `json:"time"`
	// Status is the status of this host: UpToDate, Rolling, Held or Stopped.
	Status Status `json:"status"`
	// Running is true if lockkeeper's process runs on this host.
	Running bool `json:"running"`
	// Why says why the cluster was not read.
	Why string `json:"why"`
	// Host is the last report of lockkeeper's process on this host.
	Host local.Status `json:"host"`
}

// BuildHost makes a HostView of the last report of the host's process.
func BuildHost(now time.Time, s local.Status, running bool, why string) HostView {
	return HostView{View: "host", Time: now, Status: hostStatus(&s), Running: running, Why: why, Host: s}
}

// hostStatus is the status of a host by its own report.
func hostStatus(s *local.Status) Status {
	waits := s.Waits
	switch {
	case waits == v1alpha1.ReasonStopped:
		return Stopped
	case s.Wants == v1alpha1.WantsNothing && !s.State.InTurn() && (waits == v1alpha1.ReasonNone || waits == v1alpha1.ReasonPaused):
		return UpToDate
	case waits == v1alpha1.ReasonNone && (s.State.InTurn() || s.Wants.Something()), waits == v1alpha1.ReasonBudget, bySelf[waits]:
		return Rolling
	}
	return Held
}

// ExitStatus is the exit status of `lockkeeper status --exit-code`: a host on which
// lockkeeper does not run is an error, whatever it reported last.
func (h *HostView) ExitStatus() int {
	if !h.Running {
		return ExitError
	}
	return h.Status.ExitStatus()
}

// Print prints it, as text unless the form wants data. Of the form, it ignores All and Node.
func (h *HostView) Print(w io.Writer, f Form) (exit int, err error) {
	if f.isData() {
		return h.ExitStatus(), f.writeData(w, h, "  ")
	}
	return h.ExitStatus(), h.writeText(w, f)
}

func (h *HostView) writeText(w io.Writer, f Form) error {
	s := &h.Host
	p := f.page()
	p.Line(fmt.Sprintf("Showing what this host knows, because %s.", page.Cell(h.Why)))
	if h.Running {
		p.Line(fmt.Sprintf("lockkeeper %s is running (process %d). Its report last changed %s:", s.Version, s.PID, page.Ago(h.Time, s.Time)))
	} else {
		p.Alert("lockkeeper is NOT RUNNING on this host: systemctl status lockkeeper")
		p.Line(fmt.Sprintf("Process %d (lockkeeper %s) last reported %s:", s.PID, s.Version, page.Ago(h.Time, s.Time)))
	}
	add, write := p.Labels()
	line := func(label, text string) { add(label, "%s", text) }
	line("status", s.Line)
	line("node", cmp.Or(s.Node, "unknown"))
	state := s.State.String()
	if s.Turn != "" {
		state += ", turn " + s.Turn
	}
	line("state", state)
	wants := cmp.Or(string(s.Wants), "unknown in this boot")
	if s.Wants != "" && len(s.Changes) > 0 {
		wants += ": " + changes(s.Changes, nil)
	}
	line("wants", wants)
	if s.Waits != "" || s.Detail != "" {
		text, label := string(s.Waits), "held"
		if s.Detail != "" {
			text = strings.TrimPrefix(text+": "+s.Detail, ": ")
		}
		if s.Activity == local.ActivityWorking {
			label = "doing"
		}
		line(label, text+", for "+page.Since(h.Time, &s.Since))
	}
	elects := map[v1alpha1.Role]string{
		v1alpha1.RoleLeader: "leader", v1alpha1.RoleStandby: "standby", v1alpha1.RoleHost: "not a candidate",
	}[s.Coordinator.Role]
	if s.Coordinator.Why != "" {
		elects = strings.TrimPrefix(elects+": "+s.Coordinator.Why, ": ")
	}
	line("coordinator", elects)
	line("credential", s.Coordinator.Credential.Text(h.Time))
	if s.API != nil {
		line("API server", page.Cell(s.API.Error)+", for "+page.Since(h.Time, &s.API.Since))
	}
	if s.Metrics != "" {
		line("metrics", "not served: "+page.Cell(s.Metrics))
	}
	if s.FleetLock != "" {
		line("FleetLock", "not served: "+page.Cell(s.FleetLock))
	}
	line("boot", s.BootID)
	if d := s.Waits.Doc(); d.Reason != "" {
		line("means", d.Means)
		line("to do", strings.ReplaceAll(d.Do, "NODE", cmp.Or(s.Node, "NODE")))
	}
	write()
	_, err := io.WriteString(w, p.String())
	return err
}

package report

// Exit statuses of every lockkeeper command. [ExitStatuses] says what each means;
// the documents are rendered from it.
const (
	ExitOK      = 0
	ExitError   = 1
	ExitRolling = 2
	ExitHeld    = 3
	ExitTimeout = 4
	ExitUsage   = 64 // EX_USAGE of sysexits.h
	ExitConfig  = 78 // EX_CONFIG
)

// ExitStatus is one exit status and what it means, as a sentence.
type ExitStatus struct {
	Status int
	Means  string
}

// ExitStatuses returns all exit statuses of lockkeeper, in ascending order.
func ExitStatuses() []ExitStatus {
	return []ExitStatus{
		{ExitOK, "Success. `status` and `plan` made their report, whatever it says. `wait` reached its goal."},
		{ExitError, "An error. With `status --exit-code` also: lockkeeper does not run on this host, and the report is its last one."},
		{ExitRolling, "`status --exit-code`: the rollout is under way."},
		{ExitHeld, "`status --exit-code`: the rollout is held, halted or stopped. `plan --exit-code`: a node would be held."},
		{ExitTimeout, "`wait --timeout`: the timeout expired before the goal was reached."},
		{ExitUsage, "The command line is wrong. Nothing was done."},
		{ExitConfig, "This host's configuration is invalid. Nothing was started. systemd does not start the service again."},
	}
}

// ExitStatus returns the exit status of `lockkeeper status --exit-code` for s.
func (s Status) ExitStatus() int {
	switch s {
	case UpToDate:
		return ExitOK
	case Rolling:
		return ExitRolling
	}
	return ExitHeld
}

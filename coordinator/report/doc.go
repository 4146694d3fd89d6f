// Package report is the admin's terminal: what `lockkeeper status`, `plan` and `wait` show,
// and what `lockkeeper retry`, `confirm`, `stop` and `go` write.
//
// A [Report] is made by a pure function of what was read ([Build]); text is
// rendered of a Report alone, and so is JSON, whose form is the Report's and
// is kept stable. Reading, following and the three writes are apart.
//
// Nothing is decided here about the fleet: reasons and figures are package
// rollout's, of the same Decide that the coordinator runs, asked as somebody
// who only looks. This room uses the caller's own credential and must not know
// of hosts' files nor of elections, beyond what the Lease says.
package report

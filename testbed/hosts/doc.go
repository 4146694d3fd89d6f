// Package hosts tests other people's units, and what a person sees on a host,
// under a real systemd: units that lockkeeper's targets want, run, failing and
// taken up again; whole turns with real reboots in which they run; files and units
// that change, and the units that are reloaded and restarted for it; and what
// systemctl status, journalctl and its catalog show of that. The hosts are
// package realhost's; where those cannot be, it says so and leaves them out.
package hosts

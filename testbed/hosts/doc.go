// Package hosts tests, under a real systemd, lockkeeper's handling of foreign units and what a user sees on a host:
//
//   - units that lockkeeper's targets want: their runs, their failures and their takeover by the next process;
//   - whole turns with real reboots in which they run;
//   - files and units that change, and the units that are reloaded and restarted for them;
//   - the output of systemctl status, journalctl and its catalog.
//
// The hosts are those of package realhost. On a machine that cannot run them, the package prints the reason and skips
// the tests.
package hosts

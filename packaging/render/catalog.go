package render

import (
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// catalogWidth is the width of the catalog's lines in bytes.
const catalogWidth = 80

// Catalog returns packaging/lockkeeper.catalog, the message catalog of
// systemd's journal.
func Catalog() string {
	var b strings.Builder
	b.WriteString("# What lockkeeper's entries in the journal mean, as `journalctl -x` shows it.\n" +
		"# Rendered from code by `make docs`; do not edit.\n")
	for _, d := range messageDocs {
		b.WriteString("\n-- " + string(d.ID) + "\nSubject: " + d.Subject +
			"\nDefined-By: lockkeeper\nDocumentation: man:lockkeeper(8)\n\n")
		wrap(&b, "", catalogWidth, d.Means)
		b.WriteByte('\n')
		wrap(&b, "", catalogWidth, "What to do: "+d.Do)
	}
	return b.String()
}

// messageDoc is a kind of event with what it means and what a person can do. The
// texts hold journal fields between at signs, as catalogs have them; the field
// is in every entry of that kind.
type messageDoc struct {
	ID      v1alpha1.MessageID
	Subject string
	Means   string
	Do      string
}

// messageDocs has every kind of event.
var messageDocs = []messageDoc{
	{v1alpha1.MessageStarted, "lockkeeper runs",
		"lockkeeper @LOCKKEEPER_VERSION@ runs on this host now.",
		"nothing. `systemctl status lockkeeper` shows in one line what it does or waits for."},
	{v1alpha1.MessageStops, "lockkeeper stops",
		"lockkeeper was asked to stop. A turn that is under way stays in its state and keeps its slot; after the next start it continues.",
		"start the service again: without it this node takes no turns, and a turn that is under way does not end."},
	{v1alpha1.MessageReloaded, "lockkeeper has reloaded its configuration",
		"The host's file and its drop-ins were read and are in force.",
		"nothing. `lockkeeper check-config --effective` prints every value and where it comes from."},
	{v1alpha1.MessageBadReload, "The new configuration of lockkeeper is not valid",
		"A reload found mistakes in the configuration. The old configuration stays in force: @LOCKKEEPER_ERR@",
		"fix the file; `lockkeeper check-config` names every mistake with file, line and key. Then reload."},
	{v1alpha1.MessageTurnBegins, "The turn of @LOCKKEEPER_NODE@ begins",
		"The coordinator has given node @LOCKKEEPER_NODE@ its turn, @LOCKKEEPER_TURN@. It begins in @LOCKKEEPER_STATE@.",
		"nothing. If the want vanishes before the host has committed to its reboot, the turn is backed out."},
	{v1alpha1.MessageStateEntered, "Node @LOCKKEEPER_NODE@ is in @LOCKKEEPER_STATE@",
		"@LOCKKEEPER_STATE@: @LOCKKEEPER_MEANS@.",
		"@LOCKKEEPER_DO@."},
	{v1alpha1.MessageTurnEnded, "The turn of @LOCKKEEPER_NODE@ ended: @LOCKKEEPER_RESULT@",
		"Turn @LOCKKEEPER_TURN@ is over. Done: the changes are in effect. Cancelled: they vanished, an admin took the node out, its policy no longer allowed the turn, or a new leader found too many turns. BackedOut: the turn could not continue; the node tries again later, after all others.",
		"nothing after Done and Cancelled. After BackedOut see the reason in the annotation lockkeeper.dev/last; `lockkeeper retry @LOCKKEEPER_NODE@` lets it try at once."},
	{v1alpha1.MessageTurnFailed, "The turn of @LOCKKEEPER_NODE@ failed",
		"Turn @LOCKKEEPER_TURN@ did what it was for, and it did not work. @LOCKKEEPER_REASON@: @LOCKKEEPER_MEANS@. While more nodes have failed than the policy allows, nothing is granted.",
		"@LOCKKEEPER_DO@. `lockkeeper retry @LOCKKEEPER_NODE@` clears the turn once the cause is fixed."},
	{v1alpha1.MessageHeld, "Node @LOCKKEEPER_NODE@ waits: @LOCKKEEPER_REASON@",
		"@LOCKKEEPER_REASON@: @LOCKKEEPER_MEANS@.",
		"@LOCKKEEPER_DO@."},
	{v1alpha1.MessageHeldNoMore, "Node @LOCKKEEPER_NODE@ no longer waits",
		"What the node waited for is over.",
		"nothing. If it has not got its turn, `lockkeeper status @LOCKKEEPER_NODE@` names what holds it now."},
	{v1alpha1.MessageWants, "What @LOCKKEEPER_NODE@ wants has changed: @LOCKKEEPER_WANTS@",
		"The changes that are pending on the host need other actions than before, or the host has not read every source of changes in this boot yet.",
		"nothing. If the host wants something, the coordinator gives the node its turn when the policy allows it."},
	{v1alpha1.MessageCommitted, "Node @LOCKKEEPER_NODE@ has committed in @LOCKKEEPER_STATE@",
		"The host has read its Node, the Lease, its sources and its pods once more, and continues. In draining this is the cordon. In rebooting and applying, nothing backs the turn out after it.",
		"nothing."},
	{v1alpha1.MessageStageDone, "Node @LOCKKEEPER_NODE@ is done with @LOCKKEEPER_STATE@",
		"The host has done what the state asks of it and waits for the coordinator to move it to the next state.",
		"nothing."},
	{v1alpha1.MessageRefused, "Node @LOCKKEEPER_NODE@ refuses in @LOCKKEEPER_STATE@: @LOCKKEEPER_REASON@",
		"The host refuses what the state asks of it, and has not done it. @LOCKKEEPER_REASON@: @LOCKKEEPER_MEANS@. The coordinator backs the turn out.",
		"@LOCKKEEPER_DO@."},
	{v1alpha1.MessageStageFailed, "Node @LOCKKEEPER_NODE@ has failed in @LOCKKEEPER_STATE@: @LOCKKEEPER_REASON@",
		"The host did what the state asks of it and it did not work. @LOCKKEEPER_REASON@: @LOCKKEEPER_MEANS@.",
		"@LOCKKEEPER_DO@."},
	{v1alpha1.MessageCordoned, "Node @LOCKKEEPER_NODE@ is cordoned by lockkeeper",
		"The host has cordoned its node and marked the cordon as its own (the annotation lockkeeper.dev/cordon). Only a cordon with that mark is undone.",
		"nothing. To keep the node out of the cluster after its turn, pause or detach it; a second `kubectl cordon` cannot be seen."},
	{v1alpha1.MessageUncordoned, "Node @LOCKKEEPER_NODE@ is uncordoned by lockkeeper",
		"The host has undone its own cordon and removed the mark.",
		"nothing."},
	{v1alpha1.MessageEvicting, "Node @LOCKKEEPER_NODE@ evicts its pods",
		"Pods are evicted, those of the lowest priority first, under their PodDisruptionBudgets.",
		"nothing. If it lasts, `systemctl status lockkeeper` names the pod that blocks and what keeps it."},
	{v1alpha1.MessageRebootCalled, "lockkeeper reboots this host",
		"Turn @LOCKKEEPER_TURN@ has committed to its reboot, and logind is asked for it now. Delay inhibitors, such as the kubelet's, are respected.",
		"nothing. After the boot the host proves its health before the node is given back."},
	{v1alpha1.MessageRebootPermitted, "The FleetLock client may reboot this host",
		"Turn @LOCKKEEPER_TURN@ has committed to its reboot, and the FleetLock client on this host (Zincati) has permission to reboot now. It may do so at any time: a pause or a stop no longer prevents it.",
		"nothing. If the host does not reboot within the policy's timeouts.rebooting, see the client's journal, or reboot the host by hand."},
	{v1alpha1.MessageRebootRefused, "logind refuses to reboot this host",
		"logind's message: @LOCKKEEPER_ERR@. The coordinator backs the turn out; no reboot happens.",
		"fix what logind names, and `lockkeeper retry @LOCKKEEPER_NODE@`."},
	{v1alpha1.MessageShutdown, "The host begins to shut down",
		"logind prepares for a shutdown, called by lockkeeper or by another process. If this instance coordinates, it gives up the Lease at once.",
		"nothing."},
	{v1alpha1.MessageHooksRun, "The hook units of @LOCKKEEPER_STATE@ run",
		"The units that lockkeeper-@LOCKKEEPER_STATE@.target wants are started. They may be run again after a crash or a restart of lockkeeper and must tolerate that.",
		"nothing. `systemctl list-dependencies lockkeeper-@LOCKKEEPER_STATE@.target` lists them."},
	{v1alpha1.MessageHooksDone, "The hook units of @LOCKKEEPER_STATE@ are done",
		"All units that lockkeeper-@LOCKKEEPER_STATE@.target wants have done their work and are stopped again.",
		"nothing."},
	{v1alpha1.MessageHooksFailed, "A hook unit of @LOCKKEEPER_STATE@ failed",
		"The message names the unit and how it failed. In before-drain and before-reboot the turn is backed out. In before-uncordon the node stays cordoned and the units run again, first after 1 minute and at last every 10 minutes.",
		"fix the unit. Then `lockkeeper retry @LOCKKEEPER_NODE@` runs the units of before-uncordon at once, and in the other stages allows the next turn at once. A unit that is disabled or masked is not waited for."},
	{v1alpha1.MessageHooksOverdue, "The hook units of @LOCKKEEPER_STATE@ take longer than they should",
		"Still running: @LOCKKEEPER_UNITS@. The host waits for them, as [hooks] on_timeout says, or because the stage only gives the node back.",
		"see what the units do: `journalctl -u UNIT`. `systemctl stop UNIT` makes it count as failed."},
	{v1alpha1.MessageTrouble, "lockkeeper cannot continue for now",
		"Something that lockkeeper needs does not work: @LOCKKEEPER_ERR@. It tries again by itself. What depends on this waits.",
		"fix what the message names. If that is the API server, check that the manifests are applied, and that it can be reached with the kubelet's credential, or with the coordinator's if this host coordinates."},
	{v1alpha1.MessageGranted, "Node @LOCKKEEPER_NODE@ is granted its turn",
		"This instance coordinates and has granted the node its turn, @LOCKKEEPER_TURN@, in @LOCKKEEPER_STATE@.",
		"nothing."},
	{v1alpha1.MessageElected, "This host coordinates the rollout",
		"This instance has won the Lease, under the epoch @LOCKKEEPER_EPOCH@. It lists all Nodes before its first decision.",
		"nothing."},
	{v1alpha1.MessageTermOver, "This host no longer coordinates",
		"The term @LOCKKEEPER_EPOCH@ is over. Another candidate takes over the turns that are under way.",
		"nothing, unless no host holds the Lease for more than a minute: `lockkeeper status` shows which host holds it."},
	{v1alpha1.MessageStandsBy, "This host does not coordinate",
		"Why: @LOCKKEEPER_WHY@.",
		"nothing, as long as another host holds the Lease: `lockkeeper status` shows which one."},
	{v1alpha1.MessageStopped, "The emergency stop is set",
		"The Lease carries the emergency stop, or there is no Lease. Nothing is promoted, no host commits, and hosts that drain stop evicting. What was committed before continues.",
		"find out who set it and why (@LOCKKEEPER_WHY@); `lockkeeper resume --cluster` ends it. If the Lease is missing, `lockkeeper init` creates it and ends the stop."},
	{v1alpha1.MessageStopOver, "The emergency stop is over",
		"The rollout continues.",
		"nothing."},
	{v1alpha1.MessageWriteRefused, "The API server refuses a write to Node @LOCKKEEPER_NODE@",
		"The coordinator's write was refused: @LOCKKEEPER_ERR@. The coordinator tries this node again later; the others continue.",
		"check that the manifests of this version are applied, and which admission policy or webhook refused."},
	{v1alpha1.MessageCredentialRenewed, "The coordinator's credential was renewed",
		"The token in the coordinator's kubeconfig of this host had a third of its life left. lockkeeper has asked the API server for another one, which it keeps in its state directory and uses from now on. A term of this host continues.",
		"nothing."},
	{v1alpha1.MessageCredentialExposed, "Other users can read or change the coordinator's credential",
		"@LOCKKEEPER_WHY@. Any user who can read it can grant turns to hosts that have a change pending. Any user who can change it decides which API server this host trusts as a coordinator. This host stays a candidate.",
		"do what the message says. If another user may already have read it, revoke every token and mint a new one: docs/install.md."},
	{v1alpha1.MessageCredentialEnds, "The coordinator's credential ends",
		"@LOCKKEEPER_WHY@. When it has expired, this host no longer coordinates; what was committed continues.",
		"mint a new one with `lockkeeper kubeconfig` and replace the old one with it; lockkeeper notices it without a restart."},
}

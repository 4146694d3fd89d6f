package v1alpha1

import "strings"

var messageDocs = []MessageDoc{
	{MessageStarted, "lockkeeper runs",
		"lockkeeper @LOCKKEEPER_VERSION@ has started to look after this host.",
		"nothing. `systemctl status lockkeeper` says in one line what it does or waits for."},
	{MessageStops, "lockkeeper stops",
		"lockkeeper was asked to end. A turn that is under way stays where it is and its slot stays taken; the next start goes on from there.",
		"start the service again: without it this node takes no turns, and a turn that is under way does not end."},
	{MessageReloaded, "lockkeeper has read its configuration anew",
		"The host's file and its drop-ins were read and are in force.",
		"nothing. `lockkeeper check-config --effective` prints every value and where it comes from."},
	{MessageBadReload, "The new configuration of lockkeeper is not valid",
		"A reload found mistakes in the configuration. What was in force before stays in force: @LOCKKEEPER_ERR@",
		"mend the file; `lockkeeper check-config` names every mistake with file, line and key. Then reload."},
	{MessageTurnBegins, "The turn of @LOCKKEEPER_NODE@ begins",
		"The coordinator has given node @LOCKKEEPER_NODE@ its turn, @LOCKKEEPER_TURN@. It begins in @LOCKKEEPER_STATE@.",
		"nothing. A want that vanishes turns the node round until it has committed to its reboot."},
	{MessageStateEntered, "Node @LOCKKEEPER_NODE@ is in @LOCKKEEPER_STATE@",
		"@LOCKKEEPER_STATE@: @LOCKKEEPER_MEANS@.",
		"@LOCKKEEPER_DO@."},
	{MessageTurnEnded, "The turn of @LOCKKEEPER_NODE@ ended: @LOCKKEEPER_RESULT@",
		"Turn @LOCKKEEPER_TURN@ is over. Done: the changes are in effect. Cancelled: they vanished, or a person took the node out. TurnedBack: the turn could not go on; the node tries again later, behind all others.",
		"nothing after Done and Cancelled. After TurnedBack see the reason in the annotation lockkeeper.dev/last; `lockkeeper retry @LOCKKEEPER_NODE@` lets it try at once."},
	{MessageTurnFailed, "The turn of @LOCKKEEPER_NODE@ failed",
		"Turn @LOCKKEEPER_TURN@ did what it was for, and it did not work. @LOCKKEEPER_REASON@: @LOCKKEEPER_MEANS@. While more nodes have failed than the policy allows, nothing is granted.",
		"@LOCKKEEPER_DO@. `lockkeeper retry @LOCKKEEPER_NODE@` forgives the turn when the cause is mended."},
	{MessageHeld, "Node @LOCKKEEPER_NODE@ waits: @LOCKKEEPER_REASON@",
		"@LOCKKEEPER_REASON@: @LOCKKEEPER_MEANS@.",
		"@LOCKKEEPER_DO@."},
	{MessageHeldNoMore, "Node @LOCKKEEPER_NODE@ waits no more",
		"What held the node is over.",
		"nothing."},
	{MessageWants, "What @LOCKKEEPER_NODE@ wants has changed: @LOCKKEEPER_WANTS@",
		"The changes that are pending on the host cost something else than before.",
		"nothing; the coordinator gives the node its turn when the policy allows it."},
	{MessageCommitted, "Node @LOCKKEEPER_NODE@ has committed in @LOCKKEEPER_STATE@",
		"The host has read its Node, the Lease, its sources and its pods once more, and goes ahead. In draining this is the cordon; in rebooting and applying nobody turns the turn round after it.",
		"nothing."},
	{MessageStageDone, "Node @LOCKKEEPER_NODE@ is done with @LOCKKEEPER_STATE@",
		"The host has done what the state asks of it and waits for the coordinator to move it on.",
		"nothing."},
	{MessageRefused, "Node @LOCKKEEPER_NODE@ refuses in @LOCKKEEPER_STATE@: @LOCKKEEPER_REASON@",
		"The host will not do what the state asks of it, and has not. @LOCKKEEPER_REASON@: @LOCKKEEPER_MEANS@. The coordinator turns the node round.",
		"@LOCKKEEPER_DO@."},
	{MessageStageFailed, "Node @LOCKKEEPER_NODE@ has failed in @LOCKKEEPER_STATE@: @LOCKKEEPER_REASON@",
		"The host did what the state asks of it and it did not work. @LOCKKEEPER_REASON@: @LOCKKEEPER_MEANS@.",
		"@LOCKKEEPER_DO@."},
	{MessageCordoned, "Node @LOCKKEEPER_NODE@ is cordoned by lockkeeper",
		"The host has cordoned its node and marked the cordon as its own (the annotation lockkeeper.dev/cordon). Only a cordon with that mark is undone.",
		"nothing. To keep the node out of the cluster after its turn, pause or detach it; a second `kubectl cordon` cannot be seen."},
	{MessageUncordoned, "Node @LOCKKEEPER_NODE@ is uncordoned by lockkeeper",
		"The host has undone its own cordon and removed the mark.",
		"nothing."},
	{MessageEvicting, "Node @LOCKKEEPER_NODE@ evicts its pods",
		"Pods are evicted, those of the lowest priority first, under their PodDisruptionBudgets.",
		"nothing. If it lasts, `systemctl status lockkeeper` names the pod that is stuck and what holds it."},
	{MessageRebootCalled, "lockkeeper reboots this host",
		"Turn @LOCKKEEPER_TURN@ has committed to its reboot, and logind is asked for it now. Delay inhibitors, the kubelet's for one, are honoured.",
		"nothing. After the boot the host proves its health before the node is given back."},
	{MessageRebootRefused, "logind refuses to reboot this host",
		"logind's words: @LOCKKEEPER_ERR@. The coordinator turns the node round; no reboot happens.",
		"mend what logind names, and `lockkeeper retry @LOCKKEEPER_NODE@`."},
	{MessageShutdown, "The host begins to shut down",
		"logind prepares for a shutdown, by lockkeeper's call or somebody else's. If this instance coordinates, it gives up the Lease at once.",
		"nothing."},
	{MessageHooksRun, "The hook units of @LOCKKEEPER_STATE@ run",
		"The units that lockkeeper-@LOCKKEEPER_STATE@.target wants are started. They may be run again after a crash or a restart of lockkeeper and have to bear that.",
		"nothing. `systemctl list-dependencies lockkeeper-@LOCKKEEPER_STATE@.target` lists them."},
	{MessageHooksDone, "The hook units of @LOCKKEEPER_STATE@ are done",
		"All units that lockkeeper-@LOCKKEEPER_STATE@.target wants have done their work and are stopped again.",
		"nothing."},
	{MessageHooksFailed, "A hook unit of @LOCKKEEPER_STATE@ failed",
		"The message names the unit and how it failed. In before-drain and before-reboot the turn is turned back. In before-uncordon the node stays cordoned and the units run again, after 1 minute and then later and later, every 10 minutes at last.",
		"mend the unit. Then `lockkeeper retry @LOCKKEEPER_NODE@` runs the units of before-uncordon at once, and in the other stages lets the node have its next turn at once. A unit that is disabled or masked is not waited for."},
	{MessageHooksOverdue, "The hook units of @LOCKKEEPER_STATE@ take longer than they should",
		"Still at work: @LOCKKEEPER_UNITS@. They are waited for, as [hooks] on_timeout says, or because the stage only gives the node back.",
		"see what the units do: `journalctl -u UNIT`. `systemctl stop UNIT` makes it count as failed."},
	{MessageTrouble, "lockkeeper cannot go on for now",
		"Something that lockkeeper needs does not work: @LOCKKEEPER_ERR@. It tries again by itself, and nothing is decided on what it does not know.",
		"see that the API server can be reached with the kubelet's credential, and that the manifests are applied."},
	{MessageGranted, "Node @LOCKKEEPER_NODE@ is granted its turn",
		"This instance coordinates and has let the node into its turn, @LOCKKEEPER_TURN@, in @LOCKKEEPER_STATE@.",
		"nothing."},
	{MessageElected, "This host coordinates the rollout",
		"This instance has won the Lease, under the epoch @LOCKKEEPER_EPOCH@. It reads all Nodes anew before its first decision.",
		"nothing."},
	{MessageTermOver, "This host does not coordinate any more",
		"The term @LOCKKEEPER_EPOCH@ is over. Another candidate takes over what is under way.",
		"nothing, unless no host holds the Lease for more than a minute: `lockkeeper status` says who does."},
	{MessageStandsBy, "This host does not coordinate",
		"Why: @LOCKKEEPER_WHY@.",
		"nothing, as long as another host holds the Lease: `lockkeeper status` says who does."},
	{MessageStopped, "The emergency stop is set",
		"The Lease carries the emergency stop, or there is no Lease. Nothing is promoted, no host commits, and hosts that drain stop evicting. What was committed before goes on.",
		"find out who set it and why (@LOCKKEEPER_WHY@); `lockkeeper go` ends it. A missing Lease comes back with the manifests."},
	{MessageStopOver, "The emergency stop is over",
		"The rollout goes on from where it stood.",
		"nothing."},
	{MessageWriteRefused, "The API server refuses a decision about @LOCKKEEPER_NODE@",
		"The coordinator's write was refused: @LOCKKEEPER_ERR@. The node is left alone for a while; the others go on.",
		"see that the manifests of this version are applied, and which admission policy or webhook speaks."},
	{MessageCredentialRenewed, "The coordinator's credential was renewed",
		"The token in the coordinator's kubeconfig of this host had a third of its life left. lockkeeper has asked the API server for another one, which it keeps in its state directory and uses from now on. A term of this host continues.",
		"nothing."},
	{MessageCredentialExposed, "Other users can read or change the coordinator's credential",
		"@LOCKKEEPER_WHY@. Any user who can read it can grant turns to hosts that have a change pending. Any user who can change it decides which API server this host trusts as a coordinator. This host stays a candidate.",
		"do what the entry says. If another user may already have read it, revoke every token and mint a new one: docs/install.md."},
	{MessageCredentialEnds, "The coordinator's credential ends",
		"@LOCKKEEPER_WHY@. When it has ended this host coordinates no more; what was committed goes on.",
		"mint a new one with `lockkeeper kubeconfig` and put it in the old one's place; it is noticed without a restart."},
}

var stateDocs = []StateDoc{
	{StateAbsent, "no coordinator has the node in its care", "see that an instance coordinates (`lockkeeper status`), and that the node is neither detached nor labelled lockkeeper.dev/managed=false"},
	{StateIdle, "the node is managed and in no turn", "nothing"},
	{StatePaused, "a person has paused the node; it gets no turn", "kubectl annotate node NODE lockkeeper.dev/paused- to go on"},
	{StateBeforeDrain, "hooks work before pods are evicted: those of the policy, and the units that lockkeeper-before-drain.target wants", "nothing; if it lasts, `lockkeeper status NODE` names the hook"},
	{StateDraining, "the host cordons its node and evicts its pods", "nothing; if it lasts, `systemctl status lockkeeper` on the host names the pod that is stuck"},
	{StateBeforeReboot, "hooks work on the drained node: those of the policy, and the units that lockkeeper-before-reboot.target wants", "nothing; if it lasts, `lockkeeper status NODE` names the hook"},
	{StateRebooting, "the host waits out inhibitors and sessions, commits, reboots, and proves its health in the new boot", "nothing; if it does not come back, look at the machine: its slot stays taken"},
	{StateApplying, "the host reloads or restarts what its plan names", "nothing"},
	{StateBeforeUncordon, "hooks work before pods may come back: those of the policy, and the units that lockkeeper-before-uncordon.target wants", "nothing; if it lasts, `lockkeeper status NODE` names the hook"},
	{StateUncordoning, "the host undoes its own cordon as soon as its node is Ready", "nothing; if it lasts, look at the kubelet"},
}

// wide is how long the lines of the catalog are, where words allow it.
const wide = 80

// RenderCatalog returns packaging/lockkeeper.catalog, the message catalog of
// systemd's journal.
func RenderCatalog() string {
	var b strings.Builder
	b.WriteString("# What lockkeeper's entries in the journal mean, as `journalctl -x` shows it.\n" +
		"# Rendered from api/v1alpha1/messagedocs.go: do not edit, run `make docs`.\n")
	for _, d := range messageDocs {
		b.WriteString("\n-- " + string(d.ID) + "\nSubject: " + d.Subject +
			"\nDefined-By: lockkeeper\nDocumentation: man:lockkeeper(8)\n\n")
		wrap(&b, d.Means)
		b.WriteByte('\n')
		wrap(&b, "What to do: "+d.Do)
	}
	return b.String()
}

// wrap writes text in lines.
func wrap(b *strings.Builder, text string) {
	length := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case length+1+len(word) > wide:
			b.WriteByte('\n')
			length = 0
		default:
			b.WriteByte(' ')
			length++
		}
		b.WriteString(word)
		length += len(word)
	}
	b.WriteByte('\n')
}

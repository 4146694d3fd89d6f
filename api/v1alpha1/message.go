package v1alpha1

// MessageID is a kind of event in the journal: the value of the field
// MESSAGE_ID, 32 hexadecimal digits. It never changes and is never used for
// anything else, so that `journalctl MESSAGE_ID=…` and alerts built on it go on
// working. What each means is in [MessageDocs]; the catalog that `journalctl -x`
// reads is rendered from there.
type MessageID string

// The kinds of events.
const (
	// MessageStarted: the service runs.
	MessageStarted MessageID = "57b4bd509e924811b507d8d94750ebc9"
	// MessageStops: the service stops.
	MessageStops MessageID = "4978810ba888487cb0956086567531db"
	// MessageReloaded: the configuration was read again.
	MessageReloaded MessageID = "a1a3c9c8a9034d56af65f14084c53bb0"
	// MessageBadReload: a reload was refused.
	MessageBadReload MessageID = "baa15346555c4cd7a460d39dbd4ebb32"
	// MessageTurnBegins: a turn begins.
	MessageTurnBegins MessageID = "99039ae2c5d84745aa8e8d1acdfdd4ab"
	// MessageStateEntered: a node is in another state.
	MessageStateEntered MessageID = "03a2c83da50041fdbaa6ee5190fea2e0"
	// MessageTurnEnded: a turn ended, by whatever result but Failed.
	MessageTurnEnded MessageID = "feaba5aebe8a487ebe250598cb54e95b"
	// MessageTurnFailed: a turn ended as Failed.
	MessageTurnFailed MessageID = "1a9d282fefcc4e91ba79fc36fc26bc02"
	// MessageHeld: a node waits, with the reason.
	MessageHeld MessageID = "c3a41332326848ecbda073e3865a5860"
	// MessageHeldNoMore: what a node waited for is over.
	MessageHeldNoMore MessageID = "b4c8532ed9574f20aec09688f3226622"
	// MessageWants: what the host wants has changed.
	MessageWants MessageID = "8fdb8cbb1d4e495ea6988e063379da40"
	// MessageCommitted: the host committed to a disturbance.
	MessageCommitted MessageID = "38292e5ee34048cc85f7e13fdc48053d"
	// MessageStageDone: the host has done what its state asks of it.
	MessageStageDone MessageID = "c73d045c09b5425f83dfe4e8aac9028c"
	// MessageRefused: the host will not go on in this turn.
	MessageRefused MessageID = "98692f1f11a445e7af2cae4c829ec87c"
	// MessageStageFailed: what the host did in its state did not work.
	MessageStageFailed MessageID = "4734472431534195b8b642f0b5690ad3"
	// MessageCordoned: the host cordoned its node.
	MessageCordoned MessageID = "498047b09c8c4deeaa8e5424ffdb38d8"
	// MessageUncordoned: the host uncordoned its node.
	MessageUncordoned MessageID = "acddd16f5320442194de2158e363b346"
	// MessageEvicting: the host begins to evict its pods.
	MessageEvicting MessageID = "0b18c3df1f4c418ab693a4c92942046d"
	// MessageRebootCalled: logind is asked to reboot.
	MessageRebootCalled MessageID = "68486d5411c34e59ba47f381b1d21a20"
	// MessageRebootRefused: logind would not reboot.
	MessageRebootRefused MessageID = "498b1bcb87e644358aadc922c6943018"
	// MessageShutdown: the host begins to shut down.
	MessageShutdown MessageID = "ddb7af8349df4f3a8641e5a15350e9e3"
	// MessageHooksRun: the host's own hook units are started.
	MessageHooksRun MessageID = "5e02abe3291a428fbca8b33d59dd766b"
	// MessageHooksDone: the host's own hook units are done.
	MessageHooksDone MessageID = "129e5856446a45768adc1464972d324d"
	// MessageHooksFailed: a hook unit of the host failed, or took too long.
	MessageHooksFailed MessageID = "9f949b47feb14ce1b8b9f92daf5b80c4"
	// MessageHooksOverdue: hook units take longer than [hooks] timeout, and are waited for.
	MessageHooksOverdue MessageID = "5ac57ccf402f4ae3ab16a7dbd7435821"
	// MessageTrouble: the host's loop cannot go on for now.
	MessageTrouble MessageID = "b7956d4cc98043719367efe7de46dfc3"
	// MessageGranted: the coordinator grants a turn.
	MessageGranted MessageID = "9d7478535c2b48809699e5798a3c5f7d"
	// MessageElected: this instance coordinates.
	MessageElected MessageID = "87f8587d314340518c7ccf2aa0c6a57f"
	// MessageTermOver: this instance coordinates no more.
	MessageTermOver MessageID = "ef8d61dc89554978ac7e82a6bca23469"
	// MessageStandsBy: this instance does not coordinate, and why.
	MessageStandsBy MessageID = "b381734774c846bf801cac2c75a3f220"
	// MessageStopped: the emergency stop is set.
	MessageStopped MessageID = "f204105fee214ccda5fcc7798cda5e81"
	// MessageStopOver: the emergency stop is over.
	MessageStopOver MessageID = "b8498bd2ca3e4cc1962c2a1968d19fb8"
	// MessageWriteRefused: the API server refuses a decision of the coordinator's.
	MessageWriteRefused MessageID = "0c3b3336519541ad967a585039f78da0"
	// MessageCredentialRenewed: the coordinator's token was renewed.
	MessageCredentialRenewed MessageID = "390881b88c0b4399ac88dab77ede745c"
	// MessageCredentialExposed: users other than root can read or change the
	// coordinator's credential.
	MessageCredentialExposed MessageID = "962d7a6c4e464005b7e2dd494a25a23f"
	// MessageCredentialEnds: the coordinator's credential ends soon, or has.
	MessageCredentialEnds MessageID = "8b9d591c9a1643a988d484e5e8989cc2"
)

// MessageDoc is a kind of event with what it means and what a person can do. The
// texts hold journal fields between at signs, as catalogs have them; the field
// is in every entry of that kind.
type MessageDoc struct {
	ID      MessageID
	Subject string
	Means   string
	Do      string
}

// MessageDocs are all kinds of events. packaging/lockkeeper.catalog is rendered
// from it.
func MessageDocs() []MessageDoc { return messageDocs }

// StateDoc is a state with what it means for a node and what a person can do.
type StateDoc struct {
	State State
	Means string
	Do    string
}

// StateDocs are all states, in the order of [States].
func StateDocs() []StateDoc { return stateDocs }

// Doc returns what the state means, or the zero StateDoc for one that is not
// known here.
func (s State) Doc() StateDoc {
	for _, d := range stateDocs {
		if d.State == s {
			return d
		}
	}
	return StateDoc{}
}

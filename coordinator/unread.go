package coordinator

import (
	"errors"
	"time"

	"lockkeeper.dev/lockkeeper/kube"
)

// maxUnread is how long a leader grants by policies that it cannot read again. Within
// that they are listed again if nothing is wrong. Meanwhile somebody may have paused
// them, and hosts do not check for that.
const maxUnread = time.Minute

// unread returns why nothing is granted by policies of that age (see
// [kube.Watch.Age]), or "", and how soon the answer may differ although nothing
// happens. err is why they cannot be read at present. That the API server does not
// serve the kind is an answer.
func unread(age time.Duration, err error) (why string, due time.Duration) {
	switch {
	case age == 0, errors.Is(err, kube.ErrNotServed):
		return "", leadRound
	case age < maxUnread:
		return "", min(leadRound, maxUnread-age)
	case err == nil:
		err = errors.New("the API server has not answered yet")
	}
	return err.Error(), kube.CatchUp
}

package effect

import (
	"os"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// TestMain works around client-go's second error handler, which waits until a millisecond has passed since the last
// error of the process. In a bubble, which begins in the year 2000, that would take decades.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

package object

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// Quiet is ctx for a reflector of client-go. When that context ends in the
// middle of a list or a watch, which is how every watch of ours ends, client-go
// logs errors, "Failed to watch" and others. They are none. Everything before
// that is logged as it is.
func Quiet(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx)
	return klog.NewContext(ctx, logger.WithSink(quiet{logger.GetSink(), ctx}))
}

// quiet holds back what is logged of a context's end.
type quiet struct {
	logr.LogSink
	ctx context.Context
}

// Error logs an error, unless it comes of the context's end.
func (q quiet) Error(err error, msg string, keysAndValues ...any) {
	if q.ctx.Err() != nil {
		return
	}
	q.LogSink.Error(err, msg, keysAndValues...)
}

// WithValues keeps hold of what comes after.
func (q quiet) WithValues(keysAndValues ...any) logr.LogSink {
	return quiet{q.LogSink.WithValues(keysAndValues...), q.ctx}
}

// WithName keeps hold of what comes after.
func (q quiet) WithName(name string) logr.LogSink {
	return quiet{q.LogSink.WithName(name), q.ctx}
}

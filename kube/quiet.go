package kube

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// Quiet returns ctx with a logger that logs no errors once ctx has ended. client-go
// logs an error when the context of a list or a watch ends ("Failed to watch", for
// one), although that is how every list and watch of ours ends. Errors before that
// are logged.
func Quiet(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx)
	return klog.NewContext(ctx, logger.WithSink(quiet{logger.GetSink(), ctx}))
}

// quiet is a LogSink that drops errors once ctx has ended.
type quiet struct {
	logr.LogSink
	ctx context.Context
}

// Error logs an error, unless the context has ended.
func (q quiet) Error(err error, msg string, keysAndValues ...any) {
	if q.ctx.Err() != nil {
		return
	}
	q.LogSink.Error(err, msg, keysAndValues...)
}

// WithValues returns a quiet sink with more key-value pairs.
func (q quiet) WithValues(keysAndValues ...any) logr.LogSink {
	return quiet{q.LogSink.WithValues(keysAndValues...), q.ctx}
}

// WithName returns a quiet sink with a longer name.
func (q quiet) WithName(name string) logr.LogSink {
	return quiet{q.LogSink.WithName(name), q.ctx}
}

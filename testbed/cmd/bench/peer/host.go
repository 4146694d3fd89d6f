//go:build host

package main

import (
	"context"
	"net/http"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/coreos/go-systemd/v22/daemon"
	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/coreos/go-systemd/v22/journal"
	"github.com/coreos/go-systemd/v22/login1"
	"github.com/godbus/dbus/v5"
	prometheus "github.com/prometheus/client_golang/api"
	query "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apps "k8s.io/client-go/kubernetes/typed/apps/v1"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	certificates "k8s.io/client-go/kubernetes/typed/certificates/v1"
	events "k8s.io/client-go/kubernetes/typed/events/v1"
	policy "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
)

// poll is how often the update engine is asked, as by lockkeeper without a configuration.
const poll = 30 * time.Second

func init() { asHost = watchEngine }

// keep holds what lockkeeper links and this program never calls.
var keep []any

// watchEngine does what every program does that follows an update engine: it waits for the engine's signal, asks for its status in
// each interval, because a reset sends no signal, and feeds the service manager's watchdog. It also links the other libraries of
// lockkeeper.
func watchEngine(ctx context.Context, config *rest.Config) error {
	for _, link := range []func() (any, error){
		func() (any, error) { return apps.NewForConfig(config) },
		func() (any, error) { return authentication.NewForConfig(config) },
		func() (any, error) { return certificates.NewForConfig(config) },
		func() (any, error) { return events.NewForConfig(config) },
		func() (any, error) { return policy.NewForConfig(config) },
		func() (any, error) { return toml.Decode("poll = 30", &struct{ Poll int }{}) },
		func() (any, error) {
			client, err := prometheus.NewClient(prometheus.Config{Address: "http://localhost"})
			return query.NewAPI(client), err
		},
	} {
		one, err := link()
		if err != nil {
			return err
		}
		keep = append(keep, one)
	}
	http.Handle("/metrics", promhttp.Handler())
	keep = append(keep, http.Serve, pager.New, systemd.NewWithContext, login1.New, journal.Send)

	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer bus.Close()
	if err := bus.AddMatchSignal(dbus.WithMatchInterface("com.coreos.update1.Manager"), dbus.WithMatchMember("StatusUpdate")); err != nil {
		return err
	}
	signals := make(chan *dbus.Signal, 16)
	bus.Signal(signals)
	engine := bus.Object("com.coreos.update1", "/com/coreos/update1")
	for tick := time.Tick(poll); ; {
		if err := engine.CallWithContext(ctx, "com.coreos.update1.Manager.GetStatus", dbus.FlagNoAutoStart).Err; err != nil {
			return err
		}
		if _, err := daemon.SdNotify(false, daemon.SdNotifyWatchdog); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-signals:
		case <-tick:
		}
	}
}

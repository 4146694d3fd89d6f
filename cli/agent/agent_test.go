package agent

import (
	"reflect"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/agent/metrics"
	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/coordinator/notify"
	"lockkeeper.dev/lockkeeper/node"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/policy"
)

// TestSettings checks that every setting that a reload can change reaches the host's loop.
func TestSettings(t *testing.T) {
	cfg := config.Default()
	cfg.Mode, cfg.ManagedByDefault, cfg.Paused, cfg.LifecycleConditions = config.ModeObserve, true, "disk on order", true
	cfg.Windows = make([]policy.Window, 1)
	cfg.Sources.Sentinels, cfg.Sources.ManagerNamespaces = []string{"/run/x"}, []string{"reboot-coordinator"}
	cfg.Reboot.SessionDelay, cfg.Reboot.MinUptime = 7*time.Minute, 8*time.Minute
	cfg.Health.Units, cfg.Health.Timeout = []string{"chronyd.service"}, 9*time.Minute
	cfg.Hooks.Timeout, cfg.Hooks.OnTimeout = 11*time.Minute, config.HookTimeoutAbort
	want := node.Settings{
		Observe: true, ManagedByDefault: true, Paused: "disk on order", LifecycleConditions: true,
		Windows: cfg.Windows, Sentinels: []string{"/run/x"}, ManagerNamespaces: []string{"reboot-coordinator"},
		SessionDelay: 7 * time.Minute, MinUptime: 8 * time.Minute, HealthUnits: []string{"chronyd.service"}, HealthTimeout: 9 * time.Minute,
		HookTimeout: 11 * time.Minute, HookAbort: true,
	}
	if got := settings(cfg); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, expected %+v", got, want)
	}
	for i, fields := 0, reflect.ValueOf(want); i < fields.NumField(); i++ {
		if fields.Field(i).IsZero() {
			t.Errorf("the test lacks %s", fields.Type().Field(i).Name)
		}
	}
	cfg.Mode, cfg.Hooks.OnTimeout = config.ModeAct, config.HookTimeoutWait
	if got := settings(cfg); got.Observe || got.HookAbort {
		t.Errorf("%+v, expected that the host acts, and waits for its hook units", got)
	}
}

// TestCampaignOptions checks that every setting of a candidate reaches it, with what gates and notifications need.
func TestCampaignOptions(t *testing.T) {
	cfg := config.Default()
	cfg.Lease = config.Lease{Namespace: "n", Name: "l", Duration: 5 * time.Second, RenewDeadline: 4 * time.Second, RetryPeriod: 3 * time.Second}
	cfg.Coordinator.PrometheusURL, cfg.Coordinator.PrometheusTokenFile = "https://prometheus", "/prometheus-token"
	cfg.Notify = config.Notify{
		URL: "https://chat", TokenFile: "/chat-token", Format: v1alpha1.NotifySlack, On: []v1alpha1.Occasion{"failed", "held"}, HeldLongerThan: time.Hour, Cluster: "prod",
	}
	got := (&service{cfg: cfg, metrics: metrics.New("v1")}).campaignOptions()
	if got.Notify.Count == nil {
		t.Error("notifications are not counted")
	}
	got.Notify.Count = nil
	want := coordinator.Options{
		LeaseNamespace: "n", LeaseName: "l", LeaseDuration: 5 * time.Second, RenewDeadline: 4 * time.Second, RetryPeriod: 3 * time.Second,
		PrometheusURL: "https://prometheus", PrometheusTokenFile: "/prometheus-token",
		Notify: notify.Options{
			URL: "https://chat", TokenFile: "/chat-token", Format: v1alpha1.NotifySlack, On: []v1alpha1.Occasion{v1alpha1.OccasionFailed, v1alpha1.OccasionHeld},
			HeldLongerThan: time.Hour, Cluster: "prod",
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, expected %+v", got, want)
	}
}

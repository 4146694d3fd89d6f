package kube

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// scripted returns a plugin that runs a shell script, and its working directory.
func scripted(t *testing.T, script string, edit func(*clientcmdapi.ExecConfig)) (*plugin, string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "mint")
	// A process that another test starts during the write would inherit the open file, and the
	// kernel does not execute a file that is open for writing (ETXTBSY).
	syscall.ForkLock.RLock()
	err := os.WriteFile(file, []byte("#!/bin/sh\ncd "+dir+"\n"+script), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	e := &clientcmdapi.ExecConfig{Command: file, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
	if edit != nil {
		edit(e)
	}
	p, err := newPlugin(&rest.Config{Host: "https://api.example:6443", ExecProvider: e})
	if err != nil {
		t.Fatal(err)
	}
	return p, dir
}

// gives returns a line of a script that prints a token.
func gives(token, more string) string {
	return `echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"` + token + `"` + more + "}}'\n"
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestPluginGivesACredential(t *testing.T) {
	p, dir := scripted(t, `echo "$KUBERNETES_EXEC_INFO" >info; echo "$REGION $1" >said; echo x >>runs`+"\n"+gives("s3cret", ""), func(e *clientcmdapi.ExecConfig) {
		e.Args, e.Env, e.ProvideClusterInfo = []string{"eu"}, []clientcmdapi.ExecEnvVar{{Name: "REGION", Value: "north"}}, true
	})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if m, err := p.credential(t.Context()); err != nil || m.token != "s3cret" {
				t.Errorf("%+v, %v", m, err)
			}
		})
	}
	wg.Wait()
	if runs := read(t, dir+"/runs"); runs != "x\n" {
		t.Errorf("the plugin ran %d times for one credential", len(runs)/2)
	}
	if said := read(t, dir+"/said"); said != "north eu\n" {
		t.Errorf("environment and arguments: %q", said)
	}
	info := read(t, dir+"/info")
	for _, want := range []string{`"kind":"ExecCredential"`, `"apiVersion":"client.authentication.k8s.io/v1"`, `"interactive":false`, `"server":"https://api.example:6443"`} {
		if !strings.Contains(info, want) {
			t.Errorf("%s is missing in the plugin's input: %s", want, info)
		}
	}
}

// TestPluginFails checks that errors contain the plugin's name and message, but no secrets.
func TestPluginFails(t *testing.T) {
	long := strings.Repeat("word ", 200)
	for _, c := range []struct{ name, script, want string }{
		{"fails", "echo 'no role for this' >&2; echo 'host' >&2; exit 3", "credential plugin mint: exit status 3: no role for this host"},
		{"long", "echo '" + long + "' >&2; exit 1", "credential plugin mint: exit status 1: " + long[:300] + "…"},
		{"hangs", "echo 'asking the metadata service' >&2; sleep 60", "credential plugin mint: it took more than 300ms and was killed: asking the metadata service"},
		{"hangs in a child", "sleep 60 & wait", "credential plugin mint: it took more than 300ms and was killed"},
		{"babbles", "echo s3cret", "credential plugin mint: what it printed (7 bytes) is not an ExecCredential"},
		{"empty", gives("", ""), "credential plugin mint: it provided neither a token nor a certificate with its key"},
		{"half", gives("", `,"clientCertificateData":"s3cret"`), "credential plugin mint: it provided neither a token nor a certificate with its key"},
		{"version", strings.Replace(gives("s3cret", ""), "k8s.io/v1", "k8s.io/v1beta1", 1), "credential plugin mint: it uses client.authentication.k8s.io/v1beta1, and the kubeconfig expects client.authentication.k8s.io/v1"},
		{"expired", gives("s3cret", `,"expirationTimestamp":"2020-01-01T00:00:00Z"`), "credential plugin mint: the credential that it provided has expired already"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := scripted(t, c.script, nil)
			p.bound = 300 * time.Millisecond
			if !strings.Contains(c.script, "sleep") {
				p.bound = time.Minute
			}
			began := time.Now()
			if _, err := p.credential(t.Context()); err == nil || err.Error() != c.want {
				t.Errorf("%v\n\texpected %s", err, c.want)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("the call took %v", took)
			}
		})
	}
	p, _ := scripted(t, "", func(e *clientcmdapi.ExecConfig) {
		e.Command, e.InstallHint = "no-such-plugin", "Get it at\nexample.com"
	})
	if _, err := p.credential(t.Context()); err == nil || !strings.Contains(err.Error(), "there is no such program (no-such-plugin; PATH=/") || !strings.HasSuffix(err.Error(), "): Get it at example.com") {
		t.Error(err)
	}
	for _, e := range []*clientcmdapi.ExecConfig{
		{Command: "/x/mint", APIVersion: "client.authentication.k8s.io/v1alpha1"},
		{Command: "/x/mint", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.AlwaysExecInteractiveMode},
	} {
		if _, err := newPlugin(&rest.Config{Host: "https://api.example:6443", ExecProvider: e}); err == nil || !strings.Contains(err.Error(), "credential plugin mint: it") {
			t.Error(err)
		}
	}
}

// TestPluginIsAskedAgain checks that a failing plugin runs again after a pause, and that a slow plugin does not block a
// caller for longer than the caller allows.
func TestPluginIsAskedAgain(t *testing.T) {
	p, dir := scripted(t, "echo x >>runs; [ -e good ] || exit 1\n"+gives("t", ""), nil)
	p.gap = time.Hour
	for range 5 {
		if _, err := p.credential(t.Context()); err == nil {
			t.Fatal("the plugin did not fail")
		}
	}
	if runs := read(t, dir+"/runs"); runs != "x\n" {
		t.Errorf("the plugin ran %d times within the pause", len(runs)/2)
	}
	if err := os.WriteFile(dir+"/good", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.gap = 0
	if _, err := p.credential(t.Context()); err != nil {
		t.Error(err)
	}

	p, dir = scripted(t, "while [ ! -e good ]; do sleep 0.01; done\n"+gives("t", ""), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.credential(ctx); err == nil || !strings.Contains(err.Error(), "credential plugin mint: it has not answered for ") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(dir+"/good", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.credential(t.Context()); err != nil { // from the same run
		t.Error(err)
	}
}

// TestPluginRenews checks that the plugin runs again if the API server refuses the credential, or if the credential has
// expired.
func TestPluginRenews(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer 2" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	p, _ := scripted(t, "echo x >>runs\nn=$(grep -c x runs)\n"+strings.Replace(gives("N", ""), "N", `'$n'`, 1), nil)
	p.gap = 0
	c := &http.Client{Transport: pluginTripper{http.DefaultTransport, p}}
	var codes []int
	for range 3 {
		resp, err := c.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		codes = append(codes, resp.StatusCode)
	}
	if codes[0] != 401 || codes[1] != 200 || codes[2] != 200 {
		t.Errorf("status codes %v, expected a refusal and then a success", codes)
	}
	if (&minted{expiry: time.Now().Add(-time.Second)}).valid() || !(&minted{expiry: time.Now().Add(time.Hour)}).valid() {
		t.Error("the expired credential is still used")
	}
}

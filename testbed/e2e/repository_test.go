package e2e

import (
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/walkthrough"
)

// publishedAt is the address of docs/download.md. The releases are built for it.
const publishedAt = "https://downloads.example.com/lockkeeper/1.2"

// website publishes one release at a time at publishedAt, for the hosts of the lab.
type website struct {
	server *httptest.Server
	dir    atomic.Pointer[string] // of the release
}

// startWebsite starts a website that publishes nothing yet.
func startWebsite(t *testing.T) *website {
	t.Helper()
	w := &website{}
	listener, err := net.Listen("tcp", net.JoinHostPort(lab.Gateway().String(), "443"))
	must(t, err)
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		http.StripPrefix("/lockkeeper/1.2/", http.FileServer(http.Dir(*w.dir.Load()))).ServeHTTP(out, in)
	}))
	must(t, w.server.Listener.Close())
	w.server.Listener = listener
	w.server.StartTLS() // the certificate of package httptest is for *.example.com
	t.Cleanup(w.server.Close)
	return w
}

// publish replaces what is published with the release of a deb.
func (w *website) publish(deb string) {
	dir := filepath.Dir(deb)
	w.dir.Store(&dir)
}

// clientFiles are files of a host that make its apt trust the website's certificate. The host has no curl; the
// downloader of apt stands in for it.
func (w *website) clientFiles() map[string][]byte {
	const certificate = "/etc/website.pem"
	return map[string][]byte{
		certificate:                     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw}),
		"/etc/apt/apt.conf.d/90website": fmt.Appendf(nil, "Acquire::Retries \"0\";\nAcquire::https::CaInfo \"%s\";\n", certificate),
		"/usr/local/bin/curl": []byte(`#!/bin/sh
test "$1" = -fsSLo || exit 2
exec /usr/lib/apt/apt-helper download-file "$3" "$2"
`),
	}
}

// onlySource makes the website the only source of packages of a host, because no other server can be reached.
func (w *website) onlySource(s shell) {
	s.do("rm -rf /etc/apt/sources.list /etc/apt/sources.list.d; mkdir /etc/apt/sources.list.d; echo '" + lab.Gateway().String() + " downloads.example.com' >>/etc/hosts")
}

// downloadCommands returns the commands below a heading of docs/download.md, without the one that installs curl: the host has a
// stand-in, and no source of Debian's packages.
func downloadCommands(t *testing.T, title string) string {
	t.Helper()
	text, err := os.ReadFile(sourceDir + "/docs/download.md")
	must(t, err)
	steps, err := walkthrough.Steps(string(text))
	must(t, err)
	for _, s := range steps {
		if s.Title == title {
			return strings.Replace(s.Text, "apt-get install -y ca-certificates curl\n", "", 1)
		}
	}
	t.Fatalf("docs/download.md has no commands below %q", title)
	return ""
}

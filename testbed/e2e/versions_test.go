package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// previousCommit closed the issue before the one that added these tests. A fleet that is upgraded now may run that
// version.
const previousCommit = "47ef454"

// build builds lockkeeper from a source tree with additional flags for go build.
func build(t *testing.T, dir, version string, flags ...string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "lockkeeper")
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version=" + version, "-o", to}, flags...)
	cmd := exec.CommandContext(within(t, aFleet), "go", append(args, ".")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", version, err, out)
	}
	return to
}

// checkout returns the source at a commit, or "" if the clone lacks that history.
func checkout(t *testing.T, commit string) string {
	t.Helper()
	dir := t.TempDir()
	archive := filepath.Join(t.TempDir(), "source.tar")
	if out, err := exec.CommandContext(t.Context(), "git", "-C", sourceDir, "archive", "--output="+archive, commit).CombinedOutput(); err != nil {
		t.Logf("git archive %s: %v\n%s", commit, err, out)
		return ""
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-x", "-f", archive, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("unpacking the source: %v\n%s", err, out)
	}
	return dir
}

// runs makes a host run another binary than the packaged one, and returns when the host has published its version.
func runs(t *testing.T, h *realhost.Host, binary, version string) {
	t.Helper()
	must(t, h.CopyIn(within(t, soon), binary, "/usr/bin/lockkeeper"))
	_, err := h.Exec(within(t, soon), "systemctl", "restart", "lockkeeper")
	must(t, err)
	until(t, soon, h.Name(), "to run "+version, func(n *turn.Node) bool { return n.Host != nil && n.Host.Version == version })
}

// repackaged makes a host run the packaged binary again.
func repackaged(t *testing.T, h *realhost.Host, deb, version string) {
	t.Helper()
	_, err := install(within(t, soon), h, deb)
	must(t, err)
	until(t, soon, h.Name(), "to run "+version, func(n *turn.Node) bool { return n.Host != nil && n.Host.Version == "v"+version })
}

// testMixedVersions makes some hosts run the previous version, among them the coordinator of the first rollout. After
// that all hosts run the packaged version again, one of them an older one: a downgrade.
func testMixedVersions(t *testing.T, f *fleet) {
	source := checkout(t, previousCommit)
	if source == "" {
		t.Skipf("LEFT OUT: the commit %s is not in this clone's history", previousCommit)
	}
	old := build(t, source, "previous")
	olds := []*realhost.Host{f.leader(t), f.follower(t)}
	for _, h := range olds {
		// The file of the package stays in its place, as after a downgrade, but no setting in it applies.
		runs(t, h, old, "previous")
	}
	eventually(t, soon, "a host to coordinate", func(context.Context) (bool, error) { return f.leader(t) != nil, nil })
	version := f.stage(t, f.Hosts...)
	f.updated(t, aFleet, version, f.Hosts...)
	f.status(t, "--all")
	for i, h := range f.Hosts {
		if i == 0 {
			repackaged(t, h, debs.older, olderVersion)
		} else {
			repackaged(t, h, debs.newer, newerVersion)
		}
	}
	version = f.stage(t, f.Hosts...)
	f.updated(t, aFleet, version, f.Hosts...)
}

// testProtocol has a host use a protocol that its coordinator does not know. The coordinator must hold the node for
// that.
func testProtocol(t *testing.T, f *fleet) {
	const next = v1alpha1.Protocol + 1
	source, err := filepath.Abs(sourceDir)
	must(t, err)
	file := filepath.Join(source, "api/v1alpha1/host.go")
	text, err := os.ReadFile(file)
	must(t, err)
	changed := strings.Replace(string(text), fmt.Sprintf("const Protocol = %d\n", v1alpha1.Protocol), fmt.Sprintf("const Protocol = %d\n", next), 1)
	if changed == string(text) {
		t.Fatalf("%s does not contain the expected declaration of the protocol", file)
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "host.go"), []byte(changed), 0o644))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: filepath.Join(dir, "host.go")}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644))
	h := f.follower(t)
	runs(t, h, build(t, source, "next", "-overlay="+filepath.Join(dir, "overlay.json")), "next")
	version := f.stage(t, h)
	boots := h.Boots()
	until(t, soon, h.Name(), "to be held for its protocol", held(v1alpha1.ReasonVersionSkew))
	f.status(t)
	f.showHost(t.Context(), t, h, 4)
	f.booted(t, h, boots)
	repackaged(t, h, debs.newer, newerVersion)
	f.updated(t, aTurn, version, h)
}

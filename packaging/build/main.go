// Command build makes the artefacts of `make packages`: deb and rpm, a sysext
// image with its sysupdate file, an Ignition file, an SBOM and checksums, for
// amd64 and arm64. With -release it makes those of `make release`: also archives of
// the binary, and of the command line alone for Linux and macOS, a krew manifest, a
// Helm chart, a kustomize base, the indexes that make the directory a repository for
// apt, dnf and Helm, and signatures. It runs in the module's root.
//
// The same commit gives the same bytes, except of signatures: every time in an
// artefact is the commit's, every owner is root, every list is sorted, and nothing
// depends on where or when it was built. It knows how lockkeeper is shipped, not what
// it does.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "packages: %v\n", err)
		os.Exit(1)
	}
}

// defaultURL is where the Flatcar files look for the images by default.
const defaultURL = "https://downloads.example.com/lockkeeper"

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("build", flag.ContinueOnError)
	out := flags.String("out", "dist", "`directory` of the artefacts; what is in it goes")
	describe := flags.String("version", "", "the version as `git describe` says it")
	archs := flags.String("arch", "amd64,arm64", "which `architectures`")
	address := flags.String("url", "", "`address` below which all files will be published; without -release it has a default")
	release := flags.Bool("release", false, "make all files of a release")
	on := flags.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "with -release: the `list` of platforms of the command line alone")
	key := flags.String("key", "", "with -release: the secret `key` of gpg that signs it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b, err := newBuild(ctx, *out, *describe, *address)
	if err != nil {
		return err
	}
	if *release {
		if err := b.asRelease(ctx, *address, *on, *key); err != nil {
			return err
		}
	} else if *key != "" {
		return errors.New("-key is for a release; nothing was made")
	}
	stage, err := os.MkdirTemp("", "lockkeeper-packages-")
	if err != nil {
		return err
	}
	b.stage = stage
	err = b.all(ctx, strings.Split(*archs, ","))
	return errors.Join(err, os.RemoveAll(stage))
}

// build is one run.
type build struct {
	out, stage string
	describe   string // git's description, which the binary reports as its version
	version    string // the packages'
	url        string // without a slash at its end
	at         time.Time

	platforms []platform // that the command line alone is built for; none if this is not a release
	key       string     // the fingerprint of the key that signs a release; "" for none
}

// asRelease makes b a release's build.
func (b *build) asRelease(ctx context.Context, address, on, key string) (err error) {
	if !exactly.MatchString(b.describe) {
		return fmt.Errorf("the version %q is not a release's: set VERSION, such as VERSION=1.2.3 or VERSION=1.2.3-rc.1", b.describe)
	}
	if u, err := url.Parse(address); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.String() != address {
		return fmt.Errorf("the address %q is not one at which files can be published: set URL, such as URL=https://downloads.example.com/lockkeeper/1.2", address)
	}
	b.describe = "v" + strings.TrimPrefix(b.describe, "v") // as git's tag says it
	if b.platforms, err = choose(on); err != nil {
		return err
	}
	if key != "" {
		b.key, err = findKey(ctx, key)
	}
	return err
}

func newBuild(ctx context.Context, out, describe, address string) (*build, error) {
	b := &build{describe: describe, url: strings.TrimRight(cmp.Or(address, defaultURL), "/")}
	var err error
	if b.out, err = filepath.Abs(out); err != nil {
		return nil, err
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		if epoch, err = output(ctx, "git", "log", "-1", "--format=%ct"); err != nil {
			return nil, fmt.Errorf("asking for the commit's time (SOURCE_DATE_EPOCH names another): %w", err)
		}
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	b.at = time.Unix(seconds, 0).UTC()
	if b.describe == "" {
		if b.describe, err = output(ctx, "git", "describe", "--tags", "--always", "--dirty"); err != nil {
			return nil, err
		}
	}
	b.version, err = packageVersion(b.describe, b.at)
	return b, err
}

// all makes everything, and puts it into the output directory when all of it
// is there.
func (b *build) all(ctx context.Context, archs []string) error {
	made := filepath.Join(b.stage, "dist")
	if err := os.MkdirAll(made, 0o755); err != nil {
		return err
	}
	shared, err := b.sharedFiles(ctx)
	if err != nil {
		return err
	}
	for _, name := range archs {
		arch, ok := architectures[name]
		if !ok {
			return fmt.Errorf("architecture %q, expected amd64 or arm64", name)
		}
		if err := b.oneArch(ctx, arch, shared, made); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := b.manifests(ctx, made); err != nil {
		return err
	}
	if err := b.release(ctx, archs, made); err != nil {
		return err
	}
	if err := os.RemoveAll(b.out); err != nil {
		return err
	}
	if err := os.CopyFS(b.out, os.DirFS(made)); err != nil {
		return err
	}
	fmt.Printf("packages: %s in %s\n", b.version, b.out)
	if len(b.platforms) > 0 && b.key == "" {
		fmt.Println("packages: NOT SIGNED, because there is no KEY: apt, dnf and systemd-sysupdate refuse these files unless they are told not to check signatures")
	}
	return nil
}

// release makes what only a release has, and the checksums, which everything has.
func (b *build) release(ctx context.Context, archs []string, made string) error {
	if len(b.platforms) == 0 {
		return writeSums(made)
	}
	if err := b.commandLines(ctx, made); err != nil {
		return err
	}
	if err := b.aptRepository(ctx, archs, made); err != nil {
		return err
	}
	if err := b.rpmRepository(ctx, made); err != nil {
		return err
	}
	if err := b.gitops(ctx, made); err != nil {
		return err
	}
	if err := writeSums(made); err != nil {
		return err
	}
	return b.signSums(ctx, made)
}

// architecture has the names of one architecture.
type architecture struct{ goarch, rpm, systemd string }

var architectures = map[string]architecture{
	"amd64": {"amd64", "x86_64", "x86-64"},
	"arm64": {"arm64", "aarch64", "arm64"},
}

func (b *build) oneArch(ctx context.Context, arch architecture, shared []file, made string) error {
	stage := filepath.Join(b.stage, arch.goarch)
	if err := os.MkdirAll(stage, 0o755); err != nil {
		return err
	}
	binary := filepath.Join(stage, "lockkeeper")
	if err := b.compile(ctx, platform{"linux", arch.goarch}, "", binary); err != nil {
		return err
	}
	if err := b.sbom(binary, filepath.Join(made, fmt.Sprintf("lockkeeper_%s_%s.cdx.json", b.version, arch.goarch))); err != nil {
		return err
	}
	if err := b.packages(ctx, arch, stage, shared, made); err != nil {
		return err
	}
	if err := b.sysext(ctx, arch, stage, shared, made); err != nil {
		return err
	}
	if len(b.platforms) > 0 {
		if err := b.hostArchive(arch, binary, made); err != nil {
			return err
		}
	}
	return b.flatcar(ctx, arch, made)
}

// noDocs is the build tag that leaves out what writes man pages from the commands, as in the Makefile.
const noDocs = "urfave_cli_no_docs"

// compile builds the binary for a platform, with these build tags and noDocs.
func (b *build) compile(ctx context.Context, p platform, tags, binary string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", noDocs+","+tags,
		"-ldflags", "-s -w -buildid= -X main.version="+b.describe, "-o", binary, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.goos, "GOARCH="+p.goarch, "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=")
	return quiet(cmd)
}

// without returns an environment less one variable.
func without(env []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, name+"=") })
}

// output runs a command and returns its one line.
func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// quiet runs a command. Its output is in the error if it fails.
func quiet(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, cmp.Or(strings.TrimSpace(string(out)), "(no output)"))
	}
	return nil
}

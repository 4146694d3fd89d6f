package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// gremlins calls `go mod download`, then `go test -coverprofile` once, and `go test` for each mutant. goCommand answers in the go
// command's place for four reasons:
//   - gremlins does not try mutants that the coverage profile does not contain. A profile never contains the condition of a case or
//     the declaration of a package's variable, and most decisions here are such conditions. So the profile claims everything, and
//     what no test reaches lives.
//   - gremlins counts a mutant that does not compile as killed.
//   - gremlins' only time limit is a multiple of the first run, and it does not repeat what ran into the limit.
//   - The tests have to be the short ones.

// The environment variables that goCommand reads.
const (
	goVariable      = "LOCKKEEPER_MUTANTS_GO"      // the real go command
	packageVariable = "LOCKKEEPER_MUTANTS_PACKAGE" // the directory that is mutated
	tempVariable    = "LOCKKEEPER_MUTANTS_TEMP"    // a directory for temporary files
)

// testLimit is how many seconds of CPU time the tests of one mutant may take; those of an unchanged package take four at most. Those
// that need more get retryLimit. It is not the time of day that is limited, because a busy machine would then kill mutants that live.
const (
	testLimit  = 10
	retryLimit = 40

	memoryLimit = 8 << 30 // bytes of address space
)

// environment returns the environment of gremlins: it finds this program as the go command, and a build cache of its own, because
// thousands of broken packages have no place in the user's.
func environment(dir, cache string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	realGo, err := exec.LookPath("go")
	if err != nil {
		return nil, err
	}
	if err := os.Symlink(self, filepath.Join(dir, "go")); err != nil {
		return nil, err
	}
	return append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), goVariable+"="+realGo,
		tempVariable+"="+dir, "TMPDIR="+dir, "GOCACHE="+cache), nil
}

// goCommand does what gremlins asks of the go command, and returns the exit status that gremlins expects: 1 for a mutant that is
// killed, 2 for one that does not compile.
func goCommand(args []string) int {
	if args[0] != "test" {
		return 0
	}
	defer os.Remove(binary())
	for i, arg := range args {
		if arg == "-coverprofile" {
			return coverProfile(args[i+1], os.Getenv(packageVariable))
		}
	}
	// gremlins runs this in the mutated package's directory, in a copy of the repository.
	if _, err := compile("."); err != nil {
		return 2
	}
	passed, tooLong, _ := test(".", testLimit)
	if tooLong {
		passed, _, _ = test(".", retryLimit)
	}
	if passed {
		return 0
	}
	return 1
}

// coverProfile runs the tests of the unchanged package, which have to pass, and writes a profile that covers every line.
func coverProfile(name, dir string) int {
	out, err := compile("./" + dir)
	if err == nil {
		var passed bool
		if passed, _, out = test(dir, retryLimit); !passed {
			err = fmt.Errorf("the tests of the unchanged package fail")
		}
	}
	profile := "mode: set\n"
	files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, file := range files {
		profile += fmt.Sprintf("lockkeeper.dev/lockkeeper/%s:1.1,99999.1 1 1\n", file)
	}
	if err == nil {
		err = os.WriteFile(name, []byte(profile), 0o600)
	}
	if err != nil {
		fmt.Printf("%s\nerror: %v\n", out, err)
		return 1
	}
	return 0
}

// binary is where this process compiles the tests of a package to: gremlins tries several mutants at once.
func binary() string {
	return filepath.Join(os.Getenv(tempVariable), fmt.Sprintf("tests-%d", os.Getpid()))
}

// compile compiles the tests of the package.
func compile(pkg string) (output string, err error) {
	out, err := exec.Command(os.Getenv(goVariable), "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary(), pkg).CombinedOutput()
	return string(out), err
}

// test runs the short tests that were compiled, in the package's directory. tooLong is set if they needed more CPU time than limit,
// in seconds. The shell limits the memory too, because a mutant may allocate without end.
func test(dir string, limit int) (passed, tooLong bool, output string) {
	cmd := exec.Command("sh", "-c", fmt.Sprintf(`ulimit -v %d; ulimit -t %d; exec "$@"`, memoryLimit>>10, limit), "sh",
		binary(), "-test.short", "-test.failfast", "-test.timeout=1h")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOGC=800") // memory is cheaper than time
	out, err := cmd.CombinedOutput()
	return err == nil, cmd.ProcessState != nil && cmd.ProcessState.ExitCode() < 0, string(out) // ended by a signal
}

// Package bugs keeps bugs that a maintainer could introduce into what lockkeeper does: into its loops, writes, watches
// and D-Bus calls. testdata has them, by subject. Each has to be found by a unit test, or by the virtual fleet.
//
// A bug has a name, the file that it changes, and the test that finds it: the package's directory, and the name of the test.
// Without a name, the whole package is run; without a test, the unit tests of the file's package and of the packages that
// import it. The lines after that are the change, with lines of context where the text would not be unique:
//
//	bug: only the first page of pods is listed before a reboot
//	file: drain/api.go
//	test: ./drain TestPages
//	-		if o.Continue = list.Continue; o.Continue == "" {
//	+		if true {
//
// A bug changes functions only. All of them are compiled into the tests' binaries at once, and switched on one by one.
//
// `make test` checks that each bug still applies and compiles. `make bugs` runs them; BUG='first page' selects
// those whose name contains that text. If a changed line of the product is in a bug, change the bug too. Do not delete it.
package bugs

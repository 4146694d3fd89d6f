// Package render makes documents from the definitions in code: tables in the pages of docs/, the
// journal's message catalog, the manual pages, the sample configuration and the reference of the
// DisruptionPolicy. The text around the tables is written by hand; [Fill] puts them together.
//
// The documents are files of the repository. Tests compare each with what the code says, and
// `make docs` rewrites them. Only tests import this package; it must not know where documents are
// kept.
package render

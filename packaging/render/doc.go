// Package render makes documents from the definitions in code: the pages of docs/
// about states, reasons, Events and metrics, the journal's message catalog, the
// manual pages, the shell completions, the sample configuration and the reference
// of the DisruptionPolicy. Each function returns one document, or a part of one.
//
// The documents are files of the repository. Tests compare each with what its
// function returns, and `make docs` rewrites them. Only tests import this package;
// it must not know where documents are kept.
package render

// generated marks a Markdown page that `make docs` rewrites.
const generated = "<!-- Rendered from code by `make docs`; do not edit. -->\n\n"

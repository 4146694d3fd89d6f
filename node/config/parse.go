package config

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// origin is where a value stands.
type origin struct {
	file string
	line int
}

// setting is one value of a known key, as a file has it: the raw form of what
// [Config.apply] validates.
type setting struct {
	origin
	key string
	raw any
}

// parse returns the settings in a file's text, in the order of its lines, and
// what is wrong with it.
func parse(file string, data []byte) ([]setting, Errors) {
	var root map[string]toml.Primitive
	md, err := toml.Decode(string(data), &root)
	if err != nil {
		return nil, Errors{syntaxError(file, err)}
	}
	w := &walk{file: file, data: data, md: &md}
	w.table(nil, root)
	slices.SortStableFunc(w.found, func(a, b setting) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.key, b.key))
	})
	return w.found, w.wrong
}

func syntaxError(file string, err error) *Error {
	if pe, ok := errors.AsType[toml.ParseError](err); ok {
		return &Error{File: file, Line: pe.Position.Line, Key: pe.LastKey, Got: clip(pe.Message), Expected: "TOML"}
	}
	return &Error{File: file, Err: err}
}

// walk goes through a document's tables.
type walk struct {
	file  string
	data  []byte
	md    *toml.MetaData
	found []setting
	wrong Errors
}

func (w *walk) table(prefix toml.Key, table map[string]toml.Primitive) {
	for name, value := range table {
		path := append(slices.Clone(prefix), name)
		// Key.String quotes a part with a dot in it, so that it is not taken
		// for two.
		full := path.String()
		line := w.line(value)
		var raw any
		if err := w.md.PrimitiveDecode(value, &raw); err != nil {
			w.wrong = append(w.wrong, &Error{File: w.file, Line: line, Key: full, Err: err})
			continue
		}
		switch {
		case full == windowTable:
			w.windows(line, value, raw)
		case find(full) != nil:
			w.found = append(w.found, setting{origin: origin{w.file, line}, key: full, raw: raw})
		case !isTable(full):
			w.wrong = append(w.wrong, &Error{File: w.file, Line: line, Key: clip(full), Got: "not a known key", Expected: wanted(full)})
		default:
			// The decoder makes an empty map of what is no table.
			_, ok := raw.(map[string]any)
			var inner map[string]toml.Primitive
			if !ok || w.md.PrimitiveDecode(value, &inner) != nil {
				w.wrong = append(w.wrong, &Error{File: w.file, Line: line, Key: full, Got: show(raw), Expected: "a table [" + full + "]"})
				continue
			}
			w.table(path, inner)
		}
	}
}

// line is where the key stands. The decoder knows, and tells only with an
// error; so it is made to meet one.
func (w *walk) line(value toml.Primitive) int {
	if pe, ok := errors.AsType[toml.ParseError](w.md.PrimitiveDecode(value, here{})); ok && pe.Position.Line > 0 {
		return pe.Position.Line
	}
	return 0
}

// here refuses every value.
type here struct{}

func (here) UnmarshalTOML(any) error { return errors.New("here") }

// wanted guesses which key was meant by an unknown one.
func wanted(full string) string {
	best, distance := "", 3 // what is further away is another word
	last := full[strings.LastIndexByte(full, '.')+1:]
	for _, k := range Keys() {
		name, brackets := k.Name, func(table string) string { return "[" + table + "]" }
		if k.List {
			brackets = func(table string) string { return "[[" + table + "]]" }
		}
		if table, tail, ok := strings.Cut(name, "."); ok {
			if tail == last && full != tail {
				return name
			}
			if full == tail {
				return name + " (in the table " + brackets(table) + ")"
			}
			if d := editDistance(full, table); !strings.Contains(full, ".") && d < distance {
				best, distance = brackets(table), d
			}
		}
		if d := editDistance(full, name); d < distance {
			best, distance = name, d
		}
	}
	if best == "" {
		return "one of the keys that `lockkeeper check-config --effective` lists"
	}
	return best
}

// editDistance is Levenshtein's, of the first 64 bytes.
func editDistance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

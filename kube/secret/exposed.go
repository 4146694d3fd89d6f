package secret

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxLinks bounds the symbolic links of one path, as Linux does.
const maxLinks = 40

// Exposed returns how users other than root and the user of this process can read or
// change these files: one sentence for each file or directory, nil if they cannot. It
// checks the files, and all directories and symbolic links that lead to them: anyone
// who can replace one of those can replace the file. It skips a file that does not
// exist or that it cannot check. "" is no file.
func Exposed(files ...string) []string {
	var found []string
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			continue
		}
		for _, finding := range check(file, maxLinks) {
			if !slices.Contains(found, finding) {
				found = append(found, finding)
			}
		}
	}
	return found
}

// check checks everything on the way from the root to path, and then what is there.
func check(path string, links int) (found []string) {
	at, names := "/", strings.FieldsFunc(filepath.Clean(path), func(r rune) bool { return r == '/' })
	for i, name := range append([]string{""}, names...) {
		next := filepath.Join(at, name)
		info, err := os.Lstat(next)
		if err != nil {
			return found
		}
		if info.Mode().Type() == fs.ModeSymlink {
			target, err := os.Readlink(next)
			if err != nil || links == 0 {
				return found
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(at, target)
			}
			return append(found, check(filepath.Join(append([]string{target}, names[i:]...)...), links-1)...)
		}
		text := exposedFile
		if info.IsDir() {
			text = exposedDirectory
		}
		if finding := text(next, info); finding != "" {
			found = append(found, finding)
		}
		at = next
	}
	return found
}

func exposedFile(path string, info fs.FileInfo) string {
	if uid, foreign := foreignOwner(info); foreign {
		return fmt.Sprintf("%s belongs to user %d, expected root: chown root %s", path, uid, path)
	}
	var can []string
	if info.Mode()&0o044 != 0 {
		can = append(can, "read")
	}
	if info.Mode()&0o022 != 0 {
		can = append(can, "change")
	}
	if len(can) == 0 {
		return ""
	}
	return fmt.Sprintf("users other than root can %s %s (mode %04o): chmod 0600 %s", strings.Join(can, " and "), path, info.Mode().Perm(), path)
}

// exposedDirectory returns who can replace files in the directory. In a directory
// with the sticky bit, such as /tmp, only the file's owner can.
func exposedDirectory(path string, info fs.FileInfo) string {
	if uid, foreign := foreignOwner(info); foreign {
		return fmt.Sprintf("the directory %s belongs to user %d, who can replace what is in it, expected root: chown root %s", path, uid, path)
	}
	if info.Mode()&0o022 == 0 || info.Mode()&fs.ModeSticky != 0 {
		return ""
	}
	return fmt.Sprintf("users other than root can replace what is in the directory %s (mode %04o): chmod go-w %s", path, info.Mode().Perm(), path)
}

// foreignOwner reports whether a file belongs to a user other than root and the
// user of this process.
func foreignOwner(info fs.FileInfo) (uid int, foreign bool) {
	uid = int(info.Sys().(*syscall.Stat_t).Uid)
	return uid, uid != 0 && uid != os.Geteuid()
}

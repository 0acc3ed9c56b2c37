package main

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// The rules have the names and the meaning of buf's category STANDARD (buf.build/docs/lint/rules). Four of these have no code
// here: the compiler warns of IMPORT_USED and SYNTAX_SPECIFIED, Go code that violates PACKAGE_NO_IMPORT_CYCLE does not compile,
// and PROTOVALIDATE is about a library that is not used. buf compiles 862 packages, this program 145.

// excepted are rules that do not apply to a directory. Package v1alpha1 is that of Kubernetes' file: the proposal's messages
// are of the same package, while the Go package and the directory are ours, and the package's name is no longer than that.
var excepted = map[string][]string{
	"podresources/v1alpha1": {"PACKAGE_DIRECTORY_MATCH", "PACKAGE_SAME_DIRECTORY", "PACKAGE_SAME_GO_PACKAGE", "PACKAGE_VERSION_SUFFIX"},
}

var (
	lowerSnake = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	upperSnake = regexp.MustCompile(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$`)
	pascal     = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	version    = regexp.MustCompile(`^v[1-9][0-9]*(test.*|(p[1-9][0-9]*)?(alpha|beta)([1-9][0-9]*)?)?$`)
)

// languages are the options of which all files of a package have the same value.
var languages = map[string]func(*descriptorpb.FileOptions) string{
	"PACKAGE_SAME_CSHARP_NAMESPACE":    (*descriptorpb.FileOptions).GetCsharpNamespace,
	"PACKAGE_SAME_GO_PACKAGE":          (*descriptorpb.FileOptions).GetGoPackage,
	"PACKAGE_SAME_JAVA_MULTIPLE_FILES": func(o *descriptorpb.FileOptions) string { return fmt.Sprint(o.GetJavaMultipleFiles()) },
	"PACKAGE_SAME_JAVA_PACKAGE":        (*descriptorpb.FileOptions).GetJavaPackage,
	"PACKAGE_SAME_PHP_NAMESPACE":       (*descriptorpb.FileOptions).GetPhpNamespace,
	"PACKAGE_SAME_RUBY_PACKAGE":        (*descriptorpb.FileOptions).GetRubyPackage,
	"PACKAGE_SAME_SWIFT_PREFIX":        (*descriptorpb.FileOptions).GetSwiftPrefix,
}

// A checker holds files against the rules.
type checker struct {
	wrong []string
	used  map[protoreflect.FullName]protoreflect.FullName // a method's request or response, and the method
}

// check returns what is wrong with the files, each as FILE:LINE: RULE: text.
func check(files linker.Files) []string {
	c := checker{used: map[protoreflect.FullName]protoreflect.FullName{}}
	for i, f := range files {
		c.file(f)
		for _, other := range files[:i] {
			c.pair(f, other)
		}
	}
	slices.Sort(c.wrong)
	return c.wrong
}

// need adds a message about d, unless it holds or the rule does not apply to the directory.
func (c *checker) need(holds bool, d protoreflect.Descriptor, rule, format string, args ...any) {
	file := d.ParentFile()
	if holds || slices.Contains(excepted[path.Dir(file.Path())], rule) {
		return
	}
	line := 1
	if d != protoreflect.Descriptor(file) {
		line += file.SourceLocations().ByDescriptor(d).StartLine
	}
	c.wrong = append(c.wrong, fmt.Sprintf("%s:%d: %s: %s", file.Path(), line, rule, fmt.Sprintf(format, args...)))
}

func (c *checker) name(form *regexp.Regexp, d protoreflect.Descriptor, rule string) {
	c.need(form.MatchString(string(d.Name())), d, rule, "%q does not match %s", d.Name(), form)
}

func (c *checker) file(f protoreflect.FileDescriptor) {
	base := strings.TrimSuffix(path.Base(f.Path()), ".proto")
	c.need(lowerSnake.MatchString(base), f, "FILE_LOWER_SNAKE_CASE", "%q does not match %s", base, lowerSnake)
	parts := strings.Split(string(f.Package()), ".")
	c.need(f.Package() != "", f, "PACKAGE_DEFINED", "the file names no package")
	c.need(path.Dir(f.Path()) == strings.Join(parts, "/"), f, "PACKAGE_DIRECTORY_MATCH", "package %s is in directory %s", f.Package(), path.Dir(f.Path()))
	c.need(len(parts) > 1 && version.MatchString(parts[len(parts)-1]), f, "PACKAGE_VERSION_SUFFIX", "package %s does not end with a version such as .v1", f.Package())
	for _, part := range parts {
		c.need(lowerSnake.MatchString(part), f, "PACKAGE_LOWER_SNAKE_CASE", "%q of package %s does not match %s", part, f.Package(), lowerSnake)
	}
	for i := range f.Imports().Len() {
		one := f.Imports().Get(i)
		c.need(!one.IsPublic, f, "IMPORT_NO_PUBLIC", "the import of %s is public", one.Path())
		c.need(!one.IsWeak, f, "IMPORT_NO_WEAK", "the import of %s is weak", one.Path())
	}
	c.enums(f.Enums())
	c.messages(f.Messages())
	c.fields(f.Extensions())
	for i := range f.Services().Len() {
		c.service(f.Services().Get(i))
	}
}

// pair compares two files.
func (c *checker) pair(f, other protoreflect.FileDescriptor) {
	near, same := path.Dir(f.Path()) == path.Dir(other.Path()), f.Package() == other.Package()
	c.need(!near || same, f, "DIRECTORY_SAME_PACKAGE", "%s, in the same directory, is of package %s", other.Path(), other.Package())
	c.need(!same || near, f, "PACKAGE_SAME_DIRECTORY", "%s, of the same package, is in another directory", other.Path())
	for rule, option := range languages {
		a, b := option(f.Options().(*descriptorpb.FileOptions)), option(other.Options().(*descriptorpb.FileOptions))
		c.need(!same || a == b, f, rule, "%q, and %s of the same package has %q", a, other.Path(), b)
	}
}

func (c *checker) messages(all protoreflect.MessageDescriptors) {
	for i := range all.Len() {
		m := all.Get(i)
		if m.IsMapEntry() {
			continue
		}
		c.name(pascal, m, "MESSAGE_PASCAL_CASE")
		c.fields(m.Fields())
		c.fields(m.Extensions())
		for i := range m.Oneofs().Len() {
			if one := m.Oneofs().Get(i); !one.IsSynthetic() {
				c.name(lowerSnake, one, "ONEOF_LOWER_SNAKE_CASE")
			}
		}
		c.enums(m.Enums())
		c.messages(m.Messages())
	}
}

func (c *checker) fields(all interface {
	Len() int
	Get(int) protoreflect.FieldDescriptor
}) {
	for i := range all.Len() {
		c.name(lowerSnake, all.Get(i), "FIELD_LOWER_SNAKE_CASE")
		c.need(all.Get(i).Cardinality() != protoreflect.Required, all.Get(i), "FIELD_NOT_REQUIRED", "%s is required", all.Get(i).Name())
	}
}

func (c *checker) enums(all protoreflect.EnumDescriptors) {
	for i := range all.Len() {
		e := all.Get(i)
		c.name(pascal, e, "ENUM_PASCAL_CASE")
		c.need(!e.Options().(*descriptorpb.EnumOptions).GetAllowAlias(), e, "ENUM_NO_ALLOW_ALIAS", "%s allows aliases", e.Name())
		c.need(e.Values().Get(0).Number() == 0, e, "ENUM_FIRST_VALUE_ZERO", "the first value of %s is not 0", e.Name())
		prefix := upper(string(e.Name())) + "_"
		for i := range e.Values().Len() {
			v := e.Values().Get(i)
			c.name(upperSnake, v, "ENUM_VALUE_UPPER_SNAKE_CASE")
			c.need(strings.HasPrefix(string(v.Name()), prefix), v, "ENUM_VALUE_PREFIX", "%s does not begin with %s", v.Name(), prefix)
			c.need(v.Number() != 0 || strings.HasSuffix(string(v.Name()), "_UNSPECIFIED"), v, "ENUM_ZERO_VALUE_SUFFIX", "%s does not end with _UNSPECIFIED", v.Name())
		}
	}
}

func (c *checker) service(s protoreflect.ServiceDescriptor) {
	c.name(pascal, s, "SERVICE_PASCAL_CASE")
	c.need(strings.HasSuffix(string(s.Name()), "Service"), s, "SERVICE_SUFFIX", "%s does not end with Service", s.Name())
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		c.name(pascal, m, "RPC_PASCAL_CASE")
		for _, of := range []struct {
			message protoreflect.MessageDescriptor
			kind    string
		}{{m.Input(), "Request"}, {m.Output(), "Response"}} {
			full := of.message.FullName()
			wants := []protoreflect.Name{m.Name() + protoreflect.Name(of.kind), s.Name() + m.Name() + protoreflect.Name(of.kind)}
			c.need(slices.Contains(wants, full.Name()), m, "RPC_"+strings.ToUpper(of.kind)+"_STANDARD_NAME", "%s is neither %s nor %s", full.Name(), wants[0], wants[1])
			by, taken := c.used[full]
			c.need(!taken, m, "RPC_REQUEST_RESPONSE_UNIQUE", "%s is that of %s too", full.Name(), by)
			c.used[full] = m.FullName()
		}
	}
}

// upper returns a PascalCase name in UPPER_SNAKE_CASE: PCIBus is PCI_BUS.
func upper(name string) string {
	var b strings.Builder
	all := []rune(name)
	for i, r := range all {
		if i > 0 && unicode.IsUpper(r) && (unicode.IsLower(all[i-1]) || i+1 < len(all) && unicode.IsLower(all[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}

// Command proto compiles the .proto files of a directory, holds them against the rules of this package, and writes the Go
// code that protoc-gen-go and protoc-gen-go-grpc, which stand next to it, generate from them.
//
//	proto -o OUT [-import NAME=FILE] DIR
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/bufbuild/protocompile/reporter"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

var plugins = []string{"protoc-gen-go", "protoc-gen-go-grpc"}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("proto", flag.ContinueOnError)
	out := flags.String("o", "", "the directory that the Go code is written to")
	imports := map[string]string{}
	flags.Func("import", "NAME=FILE: where a file outside of DIR stands", func(s string) error {
		name, file, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("want NAME=FILE")
		}
		imports[name] = file
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || *out == "" {
		return errors.New("usage: proto -o OUT [-import NAME=FILE] DIR")
	}
	dir := flags.Arg(0)
	var names []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) == ".proto" {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		return err
	}
	files, err := compile(names, func(name string) (io.ReadCloser, error) {
		if file, is := imports[name]; is {
			return os.Open(file)
		}
		return os.Open(filepath.Join(dir, name))
	})
	if err != nil {
		return err
	}
	if wrong := check(files); len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "\n"))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, plugin := range plugins {
		if err := generate(filepath.Join(filepath.Dir(self), plugin), files, *out); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return nil
}

// compile returns the descriptors of the named files. A warning of the compiler, about an import that is not used or a file
// without syntax, is an error.
func compile(names []string, open func(name string) (io.ReadCloser, error)) (linker.Files, error) {
	var warnings []error
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{Accessor: open}),
		SourceInfoMode: protocompile.SourceInfoStandard,
		Reporter:       reporter.NewReporter(nil, func(w reporter.ErrorWithPos) { warnings = append(warnings, w) }),
	}
	files, err := compiler.Compile(context.Background(), names...)
	return files, errors.Join(append(warnings, err)...)
}

// generate runs a plugin on the files, as protoc does, and writes its files below out.
func generate(plugin string, files linker.Files, out string) error {
	request := &pluginpb.CodeGeneratorRequest{Parameter: proto.String("paths=source_relative")}
	known := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) { // after the files that it imports
		if known[f.Path()] {
			return
		}
		known[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		request.ProtoFile = append(request.ProtoFile, descriptor(f))
	}
	for _, f := range files {
		request.FileToGenerate = append(request.FileToGenerate, f.Path())
		add(f)
	}
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	command := exec.Command(plugin)
	command.Stdin = bytes.NewReader(input)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, f := range response.File {
		file := filepath.Join(out, f.GetName())
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(f.GetContent()), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

func descriptor(f protoreflect.FileDescriptor) *descriptorpb.FileDescriptorProto {
	if result, is := f.(linker.Result); is {
		return result.FileDescriptorProto()
	}
	return protodesc.ToFileDescriptorProto(f)
}

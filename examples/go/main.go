// Answers a question through the C API: go run . MODEL [QUESTION]
//
// pkg-config finds the library: make ffi PREFIX=... installs oxidize.pc.
package main

/*
#cgo pkg-config: oxidize
#include <stdlib.h>
#include <oxidize.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"
)

// call runs a function of the library and returns its status. The message of a failure belongs to a thread of the system,
// on which the goroutine has to stay until it was read.
func call(function func() C.oxidize_status) (C.oxidize_status, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	status := function()
	if status < 0 {
		return status, errors.New(C.GoString(C.oxidize_last_error()))
	}
	return status, nil
}

// text is the address and the length of a string's bytes, which the library copies.
func text(s string) (*C.char, C.size_t) {
	if s == "" {
		return nil, 0
	}
	return (*C.char)(unsafe.Pointer(unsafe.StringData(s))), C.size_t(len(s))
}

// Engine runs a model.
type Engine struct {
	model  C.oxidize_model
	engine C.oxidize_engine
}

// NewEngine loads a model and starts an engine.
func NewEngine(path string) (*Engine, error) {
	engine := &Engine{}
	if _, err := call(func() C.oxidize_status {
		data, length := text(path)
		return C.oxidize_model_load(data, length, nil, &engine.model)
	}); err != nil {
		return nil, err
	}
	if _, err := call(func() C.oxidize_status {
		return C.oxidize_engine_new(engine.model, nil, &engine.engine)
	}); err != nil {
		C.oxidize_model_free(engine.model)
		return nil, err
	}
	return engine, nil
}

// Close ends the engine and all answers.
func (engine *Engine) Close() {
	C.oxidize_engine_free(engine.engine)
	C.oxidize_model_free(engine.model)
}

// Chat answers a question, and calls onToken with the pieces of the answer.
func (engine *Engine) Chat(question string, maxTokens uint64, onToken func(string)) error {
	var options C.oxidize_request_options
	if _, err := call(func() C.oxidize_status {
		return C.oxidize_request_options_init(&options, C.sizeof_oxidize_request_options, engine.model)
	}); err != nil {
		return err
	}
	options.max_tokens = C.uint64_t(maxTokens)
	options.temperature = 0

	var request C.oxidize_request
	if _, err := call(func() C.oxidize_status { return C.oxidize_request_new(&options, &request) }); err != nil {
		return err
	}
	defer C.oxidize_request_free(request)
	if _, err := call(func() C.oxidize_status {
		role, roleLength := text("user")
		data, length := text(question)
		return C.oxidize_request_add_message(request, role, roleLength, data, length)
	}); err != nil {
		return err
	}

	var stream C.oxidize_stream
	if _, err := call(func() C.oxidize_status {
		return C.oxidize_engine_submit(engine.engine, request, &stream)
	}); err != nil {
		return err
	}
	defer C.oxidize_stream_free(stream)
	buffer := make([]byte, 256)
	for {
		var token C.oxidize_stream_token
		status, err := call(func() C.oxidize_status {
			return C.oxidize_stream_next(stream, -1, &token, (*C.char)(unsafe.Pointer(&buffer[0])), C.size_t(len(buffer)))
		})
		switch {
		case status == C.OXIDIZE_STATUS_BUFFER_TOO_SMALL:
			// The next call returns the same token.
			buffer = make([]byte, token.text_length+1)
		case err != nil:
			return err
		case status == C.OXIDIZE_STATUS_END:
			return nil
		default:
			onToken(string(buffer[:token.text_length]))
		}
	}
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: go run . MODEL [QUESTION]")
		os.Exit(2)
	}
	questions := []string{"What is the capital of France?", "What is the capital of Italy?"}
	if len(os.Args) > 2 {
		questions = os.Args[2:]
	}
	engine, err := NewEngine(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer engine.Close()

	// The answers run in one batch.
	answers := make([]string, len(questions))
	failures := make([]error, len(questions))
	var group sync.WaitGroup
	for i, question := range questions {
		group.Add(1)
		go func(i int, question string) {
			defer group.Done()
			failures[i] = engine.Chat(question, 32, func(piece string) { answers[i] += piece })
		}(i, question)
	}
	group.Wait()
	for i, question := range questions {
		if failures[i] != nil {
			fmt.Fprintln(os.Stderr, failures[i])
			os.Exit(1)
		}
		fmt.Printf("%s\n%s\n", question, answers[i])
	}
}

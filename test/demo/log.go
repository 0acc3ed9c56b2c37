package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// devmgrdLog returns the lines of devmgrd's log after the first skip bytes.
func (s *story) devmgrdLog(skip int) ([]string, error) {
	content, err := os.ReadFile(s.n.Devmgrd.LogPath())
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(string(content[min(skip, len(content)):])), "\n"), nil
}

// logSize returns the present size of devmgrd's log.
func (s *story) logSize() int {
	info, err := os.Stat(s.n.Devmgrd.LogPath())
	if err != nil {
		return 0
	}
	return int(info.Size())
}

// logLines returns the latest line with each of the words, in the order of the log and without the date.
func (s *story) logLines(ctx context.Context, skip int, words ...string) ([]string, error) {
	var found []string
	for _, word := range words {
		line, err := s.logLine(ctx, skip, word)
		if err != nil {
			return nil, err
		}
		found = append(found, line)
	}
	slices.Sort(found) // each begins with its time
	for i, line := range found {
		found[i] = dateAndLevel.ReplaceAllString(line, "$1 ")
	}
	return found, nil
}

// dateAndLevel is the beginning of a line; its only group is the time of day.
var dateAndLevel = regexp.MustCompile(`^time=\S*T(\d\d:\d\d:\d\d\.\d\d\d)\S* level=INFO `)

// logLine waits for a line with the word. What it tells of may be seen a moment before the line is written.
func (s *story) logLine(ctx context.Context, skip int, word string) (line string, err error) {
	err = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		lines, err := s.devmgrdLog(skip)
		if err != nil {
			return false, err
		}
		for i := len(lines) - 1; i >= 0 && line == ""; i-- {
			if strings.Contains(lines[i], word) {
				line = lines[i]
			}
		}
		return line != "", nil
	})
	if err != nil {
		return "", fmt.Errorf("waiting for a line with %q in devmgrd's log: %w", word, err)
	}
	return line, nil
}

// betweenLogLines returns the time from the latest line with one word to that with another.
func (s *story) betweenLogLines(ctx context.Context, from, to string) (time.Duration, error) {
	var at [2]time.Time
	for i, word := range []string{from, to} {
		line, err := s.logLine(ctx, 0, word)
		if err != nil {
			return 0, err
		}
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		at[i], err = time.Parse(time.RFC3339, stamp)
		if err != nil {
			return 0, fmt.Errorf("devmgrd's log: %w", err)
		}
	}
	return at[1].Sub(at[0]), nil
}

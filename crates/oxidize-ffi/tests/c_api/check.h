/* Checks of the C tests: a failed one ends the program with its line. */

#ifndef CHECK_H
#define CHECK_H

#include <oxidize.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, oxidize_last_error());    \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

/* The call returns this status, and a message that contains the text. */
#define REFUSES(status, part, call)                                                                       \
    do {                                                                                                  \
        oxidize_status found = (call);                                                                    \
        if (found != (status) || !strstr(oxidize_last_error(), part)) {                                   \
            fprintf(stderr, "%s:%d: %s: %s (%d), \"%s\"\n", __FILE__, __LINE__, #call,                    \
                    oxidize_status_text(found), (int)found, oxidize_last_error());                        \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

#define OK(call) CHECK((call) == OXIDIZE_STATUS_OK)
#define NUL OXIDIZE_NUL_TERMINATED

#endif

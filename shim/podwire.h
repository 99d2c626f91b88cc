/* What the parts of the shim share. */
#ifndef PODWIRE_H
#define PODWIRE_H

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    PATH_LENGTH = 4096,
    SOCKET_PATH = sizeof(((struct sockaddr_un *)0)->sun_path),
    ANSWER_MAX = 16 << 20, /* of the body */
    LAST_WORDS_MS = 1000,
};

/* The codes of the CNI specification (section 5). */
enum { INVALID_ENVIRONMENT = 4, IO_FAILURE = 5, DECODE_FAILURE = 6, TRY_LATER = 11, NOT_AVAILABLE = 50 };

struct text {
    size_t length;
    char bytes[PATH_LENGTH * 2];
};

struct answer {
    unsigned status, exit;
    size_t length, errors; /* of the body, and of its end that is for stderr */
    int has_length, has_exit, has_errors;
};

extern const char *command;    /* CNI_COMMAND, or empty */
extern int64_t deadline;       /* of the whole call, as now() tells the time */
extern char socket_path[SOCKET_PATH];

/* waiting.c */
int64_t now(void); /* milliseconds */
int until(int64_t end);
int wait_for(int fd, short events, int64_t end);
int write_all(int fd, const char *data, size_t size);

/* failing.c */
void say(struct text *text, ...);
const char *decimal(uint64_t number, char space[static 21]);
_Noreturn void fail(int code, const struct text *message, const struct text *details);
_Noreturn void refuse(int code, const char *what, const char *value, const char *why);
_Noreturn void unavailable(const char *what, const char *why, const char *hint);
_Noreturn void late(const char *what);

/* answer.c */
int parse_head(const char *head, size_t size, struct answer *answer);

#endif

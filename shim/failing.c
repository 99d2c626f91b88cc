/* Errors as the CNI specification has them: JSON on stdout, exit status 1. */
#include "podwire.h"

#include <stdarg.h>
#include <string.h>
#include <unistd.h>

const char *command = "";
char socket_path[SOCKET_PATH];

/* Add strings, the last one followed by NULL; what does not fit is left out. */
void say(struct text *text, ...)
{
    va_list parts;
    va_start(parts, text);
    for (const char *part; (part = va_arg(parts, const char *));)
        while (*part && text->length < sizeof text->bytes)
            text->bytes[text->length++] = *part++;
    va_end(parts);
}

/* The digits of a number, which stand in `space`. */
const char *decimal(uint64_t number, char space[static 21])
{
    char *at = space + 20;
    *at = 0;
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    return at;
}

/* The length of the UTF-8 character (RFC 3629) at `at`; 0 if there is none. */
static size_t character(const unsigned char *at, size_t size)
{
    static const struct { unsigned char first, last, low, high, length; } forms[] = {
        {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t n = 0; n < sizeof forms / sizeof *forms; n++) {
        size_t length = forms[n].length;
        if (*at < forms[n].first || *at > forms[n].last)
            continue;
        if (length > size || (length > 1 && (at[1] < forms[n].low || at[1] > forms[n].high)))
            return 0;
        for (size_t k = 2; k < length; k++)
            if (at[k] < 0x80 || at[k] > 0xbf)
                return 0;
        return length;
    }
    return 0;
}

/* Write a JSON string; what is no UTF-8 becomes U+FFFD. */
static size_t quote(char *out, const struct text *text)
{
    static const char digits[] = "0123456789abcdef";
    char *to = out;
    *to++ = '"';
    for (size_t at = 0; at < text->length;) {
        const unsigned char *from = (const unsigned char *)text->bytes + at;
        size_t length = character(from, text->length - at);
        if (!length) {
            memcpy(to, "\\ufffd", 6), to += 6, at++;
        } else if (*from < 0x20 || *from == 0x7f) {
            memcpy(to, "\\u00", 4), to[4] = digits[*from >> 4], to[5] = digits[*from & 15], to += 6, at++;
        } else {
            if (*from == '"' || *from == '\\')
                *to++ = '\\';
            memcpy(to, from, length), to += length, at += length;
        }
    }
    *to++ = '"';
    return (size_t)(to - out);
}

/* Print an error as the CNI specification has it (section 5), and end. */
_Noreturn void fail(int code, const struct text *message, const struct text *details)
{
    static char out[2 * 6 * sizeof message->bytes + 256];
    static struct text head;
    size_t size;
    char number[21];
    say(&head, "{\n    \"cniVersion\": \"1.1.0\",\n    \"code\": ", decimal((unsigned)code, number),
        ",\n    \"msg\": ", NULL);
    memcpy(out, head.bytes, size = head.length);
    size += quote(out + size, message);
    if (details->length) {
        memcpy(out + size, ",\n    \"details\": ", 17), size += 17;
        size += quote(out + size, details);
    }
    memcpy(out + size, "\n}\n", 3), size += 3;
    deadline = now() + LAST_WORDS_MS;
    (void)!write_all(STDOUT_FILENO, out, size);
    _exit(1);
}

/* What the call itself, or this machine, makes impossible. */
_Noreturn void refuse(int code, const char *what, const char *value, const char *why)
{
    static struct text message, details;
    say(&message, what, value, why, NULL);
    fail(code, &message, &details);
}

/* Failures that the same call may not meet again. STATUS has a code of its own for them. */
_Noreturn void unavailable(const char *what, const char *why, const char *hint)
{
    static struct text message, details;
    say(&message, "podwire agent on ", socket_path, ": ", what, why, NULL);
    say(&details, hint, NULL);
    fail(strcmp(command, "STATUS") ? TRY_LATER : NOT_AVAILABLE, &message, &details);
}

/* The agent has not done `what` in time. */
_Noreturn void late(const char *what)
{
    unavailable(what, " before the deadline (PODWIRE_TIMEOUT, 60 s by default)", "");
}

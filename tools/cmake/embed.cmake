# cmake -DIN=file -DOUT=file.c -DNAME=symbol -P embed.cmake: the bytes of a file as a terminated C array.
file(READ "${IN}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
file(WRITE "${OUT}" "#include \"queue/queue_impl.h\"\n\nconst unsigned char ${NAME}[] = {\n${bytes}0x00};\n")

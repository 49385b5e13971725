"""Rename modules and classes: run in the root of the project."""
import re, subprocess, pathlib, os
MODULES = {
 'loop.beside':'parallel_body','loop.remote':'turn_view','loop.described':'error_entries','loop.stored':'stored_decisions',
 'records.sent':'request_digest','records.watched':'request_history','records.parts':'prompt_parts','records.own':'ownership',
 'hooks.own':'plugin_hooks','settings.own':'ownership','session.moments':'list_versions','session.places':'lines_by_place',
 'session.repeats':'repeated_changes','session.surroundings':'conversation_context','session.raised':'recorded_errors',
 'cli.written':'output_files','cli.log.inside':'inner_turns','testing.replay.inside':'inner_player',
}
CLASSES = {'Beside':'ParallelBodies','Remote':'TurnView','Apart':'CancellableCall','Stack':'TurnThread','Moment':'ListVersion','Places':'LinesByPlace','Surroundings':'ConversationContext','_Remote':'_TurnView'}
files=[p for p in map(pathlib.Path,subprocess.run(['git','ls-files','-z'],capture_output=True,text=True).stdout.split('\0')) if p.suffix in('.py','.md','.toml','.txt','.yml','.pyi') and p.name!='CHANGELOG.md' and p.exists()]
texts={p:p.read_text() for p in files}
new=dict(texts)
done={}
for old,name in MODULES.items():
    room,_,last=old.rpartition('.')
    path=pathlib.Path('connectagent',*old.split('.')).with_suffix('.py')
    if not path.exists(): print('gone',old); continue
    target=path.with_name(name+'.py')
    assert not target.exists(), target
    done[old]=(room,last,name,path,target)
    full=rf'\bconnectagent\.{re.escape(room)}\.{last}\b'
    for p,t in new.items():
        t=re.sub(full,f'connectagent.{room}.{name}',t)
        t=re.sub(rf'(["\'(]){re.escape(room)}\.{last}\b(?=["\'.)])',rf'\1{room}.{name}',t)
        t=t.replace(f'{room.replace(".","/")}/{last}.py',f'{room.replace(".","/")}/{name}.py')
        # from connectagent.room import last
        pat=rf'from connectagent\.{re.escape(room)} import ([^\n(]*|\([^)]*\))'
        hit=False
        def sub(m):
            global hit_
            if re.search(rf'\b{last}\b(?! as)',m[1]):
                hit_=True
                return m[0].replace(m[1],re.sub(rf'\b{last}\b',name,m[1]))
            return m[0]
        hit_=False
        t2=re.sub(pat,sub,t)
        if hit_ and p.suffix=='.py':
            t2=re.sub(rf'(?<![\w.]){last}\.(?=\w)',f'{name}.',t2)
        new[p]=t2
for old,(room,last,name,path,target) in done.items(): subprocess.run(['git','mv',str(path),str(target)],check=True)
moved={path:target for *_,path,target in done.values()}
for p,t in new.items():
    if p.suffix in('.py','.txt','.md'):
        for a,b in CLASSES.items():
            if p.suffix=='.md' : t=re.sub(rf'`{a}\b',f'`{b}',t) if a in('Beside','Remote','Surroundings') else t
            elif p.suffix=='.py': t=re.sub(rf'(?<![\w"\'`]){a}\b(?!["\'])',b,t) if re.search(rf'(class {a}\b|import [^\n]*\b{a}\b|^    {a},$)',texts[p],re.M) else t
    q=moved.get(p,p)
    if t!=texts[p] or q!=p: q.write_text(t)

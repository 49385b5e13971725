"""unroll.py [--ternaries] FILES: one statement says one thing."""
import ast, sys
import libcst as cst
import libcst.matchers as m

def code(node): return cst.Module([]).code_for_node(node)

def names_read(node):
    found=set()
    class V(cst.CSTVisitor):
        def visit_Attribute(self,n): n.value.visit(self); return False
        def visit_Arg(self,n): n.value.visit(self); return False
        def visit_Name(self,n): found.add(n.value)
    node.visit(V()); return found

def has_call(node):
    return bool(m.findall(node, m.Call()|m.Await()|m.Yield()|m.NamedExpr()|m.Subscript()))

def safe(targets, values):
    """Whether assigning one after the other means the same."""
    for n, target in enumerate(targets[:-1]):
        later = values[n+1:]
        text = code(target)
        if isinstance(target, cst.Name):
            if any(text in names_read(v) for v in later): return False
            if any(text in names_read(t) for t in targets[n+1:]): return False
        elif isinstance(target, cst.Attribute):
            base = code(target.value); root = base.split('.')[0].split('[')[0]
            for v in later:
                if text in code(v): return False
                if has_call(v) and (root in names_read(v)): return False
                # a property or method may read it; a plain attribute of the base is fine
            attr = target.attr.value
            for v in later:
                if any(code(a.attr)==attr for a in m.findall(v, m.Attribute())): return False
            for t in targets[n+1:]:
                if text in code(t): return False
        else:
            return False
    return True

class Unroll(cst.CSTTransformer):
    def __init__(self, ternaries): self.t=ternaries; self.count=[0,0,0]; self.skipped=[]
    def leave_IndentedBlock(self, old, new): return new.with_changes(body=self.many(new.body))
    def leave_Module(self, old, new): return new.with_changes(body=self.many(new.body))
    def many(self, body):
        out=[]
        for st in body: out.extend(self.one(st))
        return out
    def one(self, st):
        if not isinstance(st, cst.SimpleStatementLine) or len(st.body)!=1: return [st]
        s=st.body[0]
        if isinstance(s, cst.Assign) and len(s.targets)==1 and isinstance(s.targets[0].target, cst.Tuple) and isinstance(s.value, cst.Tuple):
            ts=[e.value for e in s.targets[0].target.elements if isinstance(e,cst.Element)]
            vs=[e.value for e in s.value.elements if isinstance(e,cst.Element)]
            if len(ts)==len(vs)==len(s.value.elements)==len(s.targets[0].target.elements):
                if not safe(ts,vs): self.skipped.append(code(s)); return [st]
                new=[]
                for n,(t,v) in enumerate(zip(ts,vs)):
                    if isinstance(v,cst.Tuple) and not v.lpar: return [st]
                    line=cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(t)],v)])
                    if n==0: line=line.with_changes(leading_lines=st.leading_lines)
                    if n==len(ts)-1: line=line.with_changes(trailing_whitespace=st.trailing_whitespace)
                    new.append(line)
                self.count[0]+=1
                out=[]
                for line in new: out.extend(self.one(line))
                return out
        if not self.t: return [st]
        def block(x): return cst.IndentedBlock([cst.SimpleStatementLine([x])])
        def plain(e): return e.with_changes(lpar=[],rpar=[]) if hasattr(e,'lpar') and not isinstance(e,(cst.Tuple,cst.GeneratorExp)) and '\n' not in code(e) else e
        if isinstance(s, cst.Return) and isinstance(s.value, cst.IfExp):
            v=s.value
            if has_comment(st): return [st]
            self.count[1]+=1
            first=cst.If(test=plain(v.test), body=block(cst.Return(plain(v.body))), leading_lines=st.leading_lines)
            second=cst.SimpleStatementLine([cst.Return(plain(v.orelse))])
            return [first, *self.one(second)]
        if isinstance(s, cst.Assign) and len(s.targets)==1 and isinstance(s.value, cst.IfExp) and len(code(st).strip())>=self.t and not isinstance(s.targets[0].target,cst.Tuple):
            v=s.value
            if has_comment(st): return [st]
            self.count[2]+=1
            t=s.targets
            orelse=cst.SimpleStatementLine([cst.Assign(t,plain(v.orelse))])
            inner=self.one(orelse)
            return [cst.If(test=plain(v.test), body=block(cst.Assign(t,plain(v.body))), orelse=cst.Else(cst.IndentedBlock(inner)), leading_lines=st.leading_lines)]
        return [st]

def has_comment(st): return st.trailing_whitespace.comment is not None

args=sys.argv[1:]; tern=0
if args[0]=='--ternaries': tern=int(args[1]); args=args[2:]
total=[0,0,0]; sk=[]
for f in args:
    src=open(f).read(); tr=Unroll(tern)
    new=cst.parse_module(src).visit(tr).code
    if new!=src:
        ast.parse(new); open(f,'w').write(new)
    total=[a+b for a,b in zip(total,tr.count)]; sk+=[(f,x) for x in tr.skipped]
print('parallel',total[0],'returns',total[1],'assigned',total[2],'skipped',len(sk))
for f,x in sk: print('  ',f,x)
